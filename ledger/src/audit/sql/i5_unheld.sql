-- Accepted jobs that hold nothing, so that nothing would ever wake or settle them. A running one may have been made
-- available by hand. It gets a reservation when the guard checks it.
SELECT format('job %s (%s) is unfinished and has no reservation', j.id, j.state)
FROM weir_jobs s
JOIN river_job j ON j.id = s.job_id
WHERE j.finalized_at IS NULL AND s.submitted_at IS NOT NULL AND s.ended_at IS NOT NULL
  AND (j.state = 'pending' OR j.state = 'running' AND attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at) <= now() - make_interval(secs => $2))
UNION ALL
-- A reservation that has no slot, is not parked and is never due.
SELECT format('job %s of holder %s (pending) waits for nothing', j.id, r.holder)
FROM quota_reservations r
JOIN river_job j ON j.id = r.job_id
WHERE r.admitted_at IS NULL AND r.parked_at IS NULL AND r.due_at IS NULL AND j.state = 'pending'
  AND NOT EXISTS (SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by))
LIMIT $1
