-- What a job has reserved, and the quota of its billing period as it is. $1 job. By keys.
SELECT r.reserved_amount,
       (SELECT (jsonb_agg(quota_json(w.used, w.reserved, w.most, w.reset_at, w.from_grants, g.granted, w.ceiling))
                FILTER (WHERE w.span = 'month')) -> 0
        FROM windows_in_force(r) w) AS quota
FROM quota_reservations r
CROSS JOIN LATERAL (
    SELECT coalesce(sum(l.amount), 0)::bigint AS granted
    FROM holders h
    CROSS JOIN LATERAL grants_left(h.user_id, h.event_type, clock_timestamp()) l
    WHERE h.holder = r.holder AND h.event_type = r.event_type AND h.has_grants
) g
WHERE r.job_id = $1
