-- Submitted jobs that run without a slot.
-- Parameters: $2 seconds within which the guard checks a claimed job.
SELECT format('job %s of holder %s (%s) runs without a slot', j.id, s.holder, j.kind)
FROM river_job j
JOIN weir_jobs s ON s.job_id = j.id
WHERE (j.state = 'running' OR j.state = 'pending' AND EXISTS (
          SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by)))
  AND attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at) <= now() - make_interval(secs => $2)
  AND s.admitted_at IS NULL
  AND (s.ended_at IS NULL OR s.submitted_at IS NOT NULL)
  AND (SELECT counts_slots FROM weir_settings)
LIMIT $1
