-- The amount that a job has reserved, and the current quota of its billing period.
-- Parameters: $1 job. Look-ups by key.
SELECT r.reserved_amount,
       CASE WHEN r.user_id IS NOT NULL AND coalesce(a.slots, raise_no_limits(r.event_type)) IS NOT NULL THEN
           quota_json(a.used, a.reserved, a.monthly_limit, a.period_end, a.from_grants, a.granted, a.monthly_ceiling)
       END AS quota
FROM quota_reservations r
JOIN holders h ON h.holder = r.holder AND h.event_type = r.event_type
CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
LEFT JOIN LATERAL account_of(r.user_id, r.event_type, h.has_grants, clock.at, r.period_start, r.windows, r.created_at) a
    ON true
WHERE r.job_id = $1
