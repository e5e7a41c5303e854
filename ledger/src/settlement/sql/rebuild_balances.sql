-- Sets the balances of users to the sums of their usage events and reservations. The caller holds their locks. Client
-- addresses have no balances. Deleted balances of old windows are not created again: see short_window_lifetime().
-- Parameters: $1 holders.
INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, used, reserved, from_grants)
SELECT k.user_id, k.event_type, k.span, k.period_start, coalesce(u.used, 0), coalesce(r.reserved, 0),
       coalesce(u.from_grants, 0) + coalesce(r.from_grants, 0)
FROM (
    SELECT user_id, event_type, span, period_start FROM quota_balances WHERE user_id = ANY ($1::uuid[])
    UNION
    SELECT user_id, event_type, span, period_start FROM charged_amounts
    WHERE user_id = ANY ($1) AND (span = 'month' OR period_start > now() - (short_window_lifetime() - interval '1 day'))
    UNION
    SELECT user_id, event_type, span, period_start FROM reserved_amounts WHERE user_id = ANY ($1)
) k
LEFT JOIN (
    SELECT user_id, event_type, span, period_start, sum(amount) AS used, sum(from_grants) AS from_grants
    FROM charged_amounts WHERE user_id = ANY ($1) GROUP BY 1, 2, 3, 4
) u USING (user_id, event_type, span, period_start)
LEFT JOIN (
    SELECT user_id, event_type, span, period_start, sum(amount) AS reserved, sum(from_grants) AS from_grants
    FROM reserved_amounts WHERE user_id = ANY ($1) GROUP BY 1, 2, 3, 4
) r USING (user_id, event_type, span, period_start)
ORDER BY 1, 2, 3, 4
ON CONFLICT (user_id, event_type, span, period_start) DO UPDATE
    SET used = excluded.used, reserved = excluded.reserved, from_grants = excluded.from_grants
