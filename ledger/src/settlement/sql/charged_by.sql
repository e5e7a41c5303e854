-- The charge of the attempt that completed a job; no row when this attempt did not.
-- Parameters: $1 job, $2 attempt, $3 when the job was created, null to skip that check. Look-ups by key.
SELECT coalesce(u.quota_amount, 0)::bigint AS charged
FROM river_job j
LEFT JOIN usage_events u ON u.job_id = j.id
WHERE j.id = $1 AND j.attempt = $2 AND (j.state = 'completed') IS TRUE
  AND ($3::timestamptz IS NULL OR j.created_at = $3)
