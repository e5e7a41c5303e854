-- Failed or snoozed jobs that keep their slot while they wait for the next attempt. Weir's workers free the slot with
-- the failure. The sweep finds failures that other clients record. The time of a snooze is not stored, so the check
-- allows an hour for its attempt.
-- Parameters: $2 extra seconds beyond the ten minutes of a sweep.
SELECT format('job %s of holder %s waits for its next attempt and keeps a slot', r.job_id, r.holder)
FROM quota_reservations r
JOIN river_job j ON j.id = r.job_id
CROSS JOIN LATERAL (SELECT j.errors[array_upper(j.errors, 1)] ->> 'at' AS at) failed
WHERE r.admitted_at IS NOT NULL
  AND CASE WHEN j.state = 'scheduled' THEN j.attempted_at < now() - make_interval(secs => 3600 + 600 + $2)
           -- Ignores text that is not a time, so that the audit continues.
           WHEN j.state = 'retryable' AND failed.at ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d'
           THEN failed.at::timestamptz < now() - make_interval(secs => 600 + $2) END
LIMIT $1
