-- Jobs that failed, or were snoozed, and keep their slot while they wait for the next attempt. A worker of ours gives it
-- back with the failure; what another client records, the sweep finds. Nobody writes down when a job was snoozed, so an
-- hour is left for its attempt. $5 seconds beside the ten minutes that a pass of the sweep may take.
SELECT format('job %s of holder %s waits for its next attempt and keeps a slot', r.job_id, r.holder)
FROM quota_reservations r
JOIN river_job j ON j.id = r.job_id
CROSS JOIN LATERAL (SELECT j.errors[array_upper(j.errors, 1)] ->> 'at' AS at) failed
WHERE r.admitted_at IS NOT NULL
  AND CASE WHEN j.state = 'scheduled' THEN j.attempted_at < now() - make_interval(secs => 3600 + 600 + $5)
           -- Whatever somebody wrote there, the audit goes on.
           WHEN j.state = 'retryable' AND failed.at ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d'
           THEN failed.at::timestamptz < now() - make_interval(secs => 600 + $5) END
LIMIT $1
