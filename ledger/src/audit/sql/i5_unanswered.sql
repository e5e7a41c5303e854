-- Jobs that hold a slot and wait without an outstanding attempt; and attempts that did not fail although their handler
-- missed its deadline.
-- Parameters: $2 seconds in addition to the ten that this may take.
SELECT format('job %s of holder %s holds a slot without a running attempt', r.job_id, r.holder)
FROM quota_reservations r
JOIN river_job j ON j.id = r.job_id
WHERE r.admitted_at <= now() - make_interval(secs => 10 + $2) AND j.state = 'pending'
  AND NOT EXISTS (SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by))
UNION ALL
SELECT format('job %s: its handler should have answered by %s', o.job_id, o.deadline_at)
FROM outstanding_attempts o
WHERE o.deadline_at < now() - make_interval(secs => 10 + $2)
LIMIT $1
