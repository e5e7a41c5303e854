-- The attempts that a River client has run for long, by the database's clock. One index range of the running jobs.
-- Parameters: $1 the River client, $2 kinds, $3 seconds.
SELECT j.id AS job_id, claim_of(j.attempt, j.attempted_by) AS claim
FROM river_job j
WHERE j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] = $1 AND j.kind = ANY ($2::text[])
  AND j.attempted_at < now() - make_interval(secs => $3)
