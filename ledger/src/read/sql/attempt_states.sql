-- The current attempts at those of these jobs that run.
-- Parameters: $1 jobs. Look-ups by key.
SELECT j.id AS job_id, claim_of(j.attempt, j.attempted_by) AS claim, j.metadata ? 'cancel_attempted_at' AS is_cancelled
FROM river_job j
WHERE j.id = ANY ($1::bigint[]) AND (j.state = 'running') IS TRUE
