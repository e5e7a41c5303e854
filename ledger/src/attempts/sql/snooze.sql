-- Schedules a job again as if this attempt had not started, as River's snooze does.
-- Parameters: $1 job, $2 claim, $3 seconds, $4 when the job was created. A look-up by key.
UPDATE river_job j
SET state = 'scheduled', attempt = greatest(j.attempt - 1, 0), scheduled_at = now() + make_interval(secs => $3)
WHERE j.id = $1 AND claim_of(j.attempt, j.attempted_by) = $2 AND j.created_at = $4
  AND (j.state = 'running') IS TRUE
