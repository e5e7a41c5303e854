-- Inserts due reservations without a slot for strays, so that they are parked. They reserve no quota. A job whose account
-- was deleted in the meantime waits for the next round.
-- Parameters: $1 job ids, $2 holders, $3 user ids, $4 meters, pairwise; $5 seconds to live.
INSERT INTO weir_jobs AS r
    (job_id, holder, user_id, event_type, reserved_amount, expires_at, period_start, windows, admitted_at, parked_at, due_at)
SELECT a.job_id, a.holder, a.user_id, a.event_type, 0, now() + make_interval(secs => $5),
       CASE WHEN a.user_id IS NOT NULL THEN period_start_of(a.user_id, now()) END,
       CASE WHEN a.user_id IS NULL THEN 0
            ELSE coalesce((SELECT max(l.counted) FROM plan_limits l WHERE l.event_type = a.event_type), 0) END,
       NULL, NULL, now()
FROM unnest($1::bigint[], $2::uuid[], $3::uuid[], $4::usage_event_type[]) AS a (job_id, holder, user_id, event_type)
JOIN holders h ON h.holder = a.holder AND h.event_type = a.event_type
WHERE EXISTS (SELECT 1 FROM river_job j WHERE j.id = a.job_id AND j.state = 'available')
ORDER BY 1
FOR KEY SHARE OF h
ON CONFLICT (job_id) DO UPDATE
    SET due_at = excluded.due_at, ended_at = NULL, expires_at = excluded.expires_at,
        (reserved_amount, period_start, windows, reserved_at) = (
            SELECT r.reserved_amount, r.period_start, r.windows, r.reserved_at WHERE r.ended_at IS NULL
            UNION ALL
            SELECT 0, excluded.period_start, excluded.windows, excluded.reserved_at WHERE r.ended_at IS NOT NULL)
    WHERE r.admitted_at IS NULL AND r.parked_at IS NULL AND r.due_at IS NULL
      AND (r.ended_at IS NULL OR r.submitted_at IS NULL)
