-- A user's usage and reservations in the current billing period.
-- Parameters: $1 user, $2 meter.
SELECT coalesce(max(b.used), 0) AS used, coalesce(max(b.reserved), 0) AS reserved
FROM quota_balances b
WHERE b.user_id = $1 AND b.event_type = $2 AND b.span = 'month' AND b.period_start = period_start_of($1, now())
