-- The slots, quotas and holders of jobs. A settled job has a submission and no reservation.
-- Parameters: $1 job ids.
SELECT a.job_id,
       coalesce(r.holder, s.holder) AS holder,
       coalesce(r.user_id, s.user_id) AS user_id,
       coalesce(r.event_type, s.event_type) AS event_type,
       r.job_id IS NOT NULL AS has_reservation,
       coalesce(r.admitted_at IS NOT NULL, false) AS admitted
FROM unnest($1::bigint[]) AS a (job_id)
LEFT JOIN LATERAL (SELECT * FROM quota_reservations q WHERE q.job_id = a.job_id OFFSET 0) r ON true
LEFT JOIN LATERAL (
    SELECT * FROM submissions b WHERE b.job_id = a.job_id AND r.job_id IS NULL OFFSET 0
) s ON true
WHERE r.job_id IS NOT NULL OR s.job_id IS NOT NULL
