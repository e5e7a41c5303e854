-- The reservations in a slice, in the order of their jobs, that are no longer justified. The job has ended, was deleted
-- (an orphan), or holds a slot while it waits for its next attempt.
-- Parameters: $1 the last job of the previous slice, $2 the size of a slice, $3 seconds that a reservation lives.
WITH slice AS MATERIALIZED (
    SELECT job_id, holder, admitted_at, expires_at FROM quota_reservations WHERE job_id > $1 ORDER BY job_id LIMIT $2
), looked_up AS (
    SELECT s.job_id, s.holder, s.expires_at, j.id IS NULL AS is_orphan,
           j.finalized_at IS NOT NULL OR s.admitted_at IS NOT NULL AND j.state IN ('retryable', 'scheduled') AS has_ended
    FROM slice s
    LEFT JOIN LATERAL (SELECT * FROM river_job k WHERE k.id = s.job_id OFFSET 0) j ON true
)
SELECT max(job_id) AS last,
       count(*) AS size,
       coalesce(min(expires_at) < now() + make_interval(secs => $3::float8 / 2), false) AS wants_renewal,
       coalesce(array_agg(job_id) FILTER (WHERE is_orphan), '{}') AS orphans,
       coalesce(array_agg(holder) FILTER (WHERE is_orphan), '{}') AS of_orphans,
       coalesce(array_agg(job_id) FILTER (WHERE has_ended), '{}') AS ended,
       coalesce(array_agg(holder) FILTER (WHERE has_ended), '{}') AS of_ended
FROM looked_up
