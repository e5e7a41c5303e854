-- Submitted jobs that run without a slot.
-- Parameters: $2 seconds within which the guard checks a claimed job.
SELECT format('job %s of holder %s (%s) runs without a slot', j.id, coalesce(r.holder, s.holder), j.kind)
FROM river_job j
LEFT JOIN quota_reservations r ON r.job_id = j.id
LEFT JOIN submissions s ON s.job_id = j.id
WHERE (j.state = 'running' OR j.state = 'pending' AND EXISTS (
          SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by)))
  AND attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at) <= now() - make_interval(secs => $2)
  AND r.admitted_at IS NULL
  AND (r.job_id IS NOT NULL OR s.job_id IS NOT NULL)
  AND (SELECT counts_slots FROM weir_settings)
LIMIT $1
