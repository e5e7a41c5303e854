-- Marks the imported usage and reservations as accepted, in the windows that they count in: the product may have accepted
-- more than the plan allows.
UPDATE window_balances b
SET granted_limit = b.used + b.reserved - b.from_grants
FROM (
    SELECT k.user_id, k.event_type, w.span, w.period_start
    FROM pg_temp.import_usage e
    JOIN usage_events k ON k.id = e.event_id
    CROSS JOIN LATERAL windows_of(k.period_start, k.windows, coalesce(k.reserved_at, k.created_at)) w
    WHERE e.is_new
    UNION
    SELECT k.user_id, k.event_type, w.span, w.period_start
    FROM pg_temp.import_reservations r
    JOIN quota_reservations k ON k.job_id = r.job_id
    CROSS JOIN LATERAL windows_of(k.period_start, k.windows, k.created_at) w
    WHERE r.is_new
) i
WHERE b.user_id = i.user_id AND b.event_type = i.event_type AND b.span = i.span AND b.period_start = i.period_start
  AND b.granted_limit < b.used + b.reserved - b.from_grants
