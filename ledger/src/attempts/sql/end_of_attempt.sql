-- The outcome of an attempt's job.
-- Parameters: $1 job, $2 claim, $3 when the job was created. `charged` is the charge if this attempt completed the job.
SELECT j.state::text AS state, claim_of(j.attempt, j.attempted_by) = $2 AS is_latest,
       coalesce(u.quota_amount, 0)::bigint AS charged
FROM river_job j
LEFT JOIN usage_events u ON u.job_id = j.id
WHERE j.id = $1 AND j.created_at = $3
