-- What a user has used in the current billing period. $1 user, $2 meter.
SELECT coalesce(
    (SELECT b.used FROM quota_balances b
     WHERE b.user_id = $1 AND b.event_type = $2 AND b.span = 'month' AND b.period_start = period_start_of($1, now())),
    0) AS used
