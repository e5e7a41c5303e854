-- Sets the balances of one user to the sums of its usage events and reservations. The caller holds its locks.
-- $1 the user's holder. A client address has none.
INSERT INTO quota_balances AS b (user_id, event_type, period_start, used, reserved)
SELECT k.user_id, k.event_type, k.period_start,
       coalesce((SELECT sum(u.quota_amount) FROM usage_events u
                 WHERE u.user_id = k.user_id AND u.event_type = k.event_type AND u.period_start = k.period_start), 0),
       coalesce((SELECT sum(r.reserved_amount) FROM quota_reservations r
                 WHERE r.holder = k.user_id AND r.user_id = k.user_id AND r.event_type = k.event_type
                   AND r.period_start = k.period_start), 0)
FROM (
    SELECT user_id, event_type, period_start FROM quota_balances WHERE user_id = $1
    UNION
    SELECT user_id, event_type, period_start FROM usage_events WHERE user_id = $1
    UNION
    SELECT user_id, event_type, period_start FROM quota_reservations
    WHERE holder = $1 AND user_id = $1 AND period_start IS NOT NULL
) k
ON CONFLICT (user_id, event_type, period_start) DO UPDATE SET used = excluded.used, reserved = excluded.reserved
