-- Jobs that are due but are neither parked nor admitted, and those that are due after their own time.
-- Parameters: $2 seconds in addition to the ten that this may take.
SELECT format('job %s of holder %s (%s) has been due since %s', r.job_id, r.holder, j.state, r.due_at)
FROM quota_reservations r
JOIN river_job j ON j.id = r.job_id
WHERE r.due_at < now() - make_interval(secs => 10 + $2) AND j.finalized_at IS NULL AND j.state <> 'running'
UNION ALL
-- An operator who starts a job early makes it available.
SELECT format('job %s of holder %s (%s) is due at %s, but scheduled for %s', r.job_id, r.holder, j.state, r.due_at, j.scheduled_at)
FROM quota_reservations r
JOIN river_job j ON j.id = r.job_id
WHERE r.due_at > j.scheduled_at + make_interval(secs => 10 + $2) AND j.state IN ('pending', 'retryable', 'scheduled')
LIMIT $1
