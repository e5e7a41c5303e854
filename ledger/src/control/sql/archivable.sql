-- At most a thousand users and meters with a billing period that ended by a time, in order.
-- Parameters: $1 the time, $2 and $3 the user and the meter after which to continue. A range of the primary key.
SELECT DISTINCT user_id, event_type
FROM quota_balances
WHERE (user_id, event_type::text) > ($2, $3) AND user_id >= $2
  AND span = 'month' AND period_start + interval '1 month' <= $1
ORDER BY user_id, event_type
LIMIT 1000
