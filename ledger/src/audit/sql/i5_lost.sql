-- Jobs that are lost, and jobs that ended without an attempt. River keeps ended jobs for a day, and Weir those of users.
-- A submission is marked when its reservation is released without a charge: an operator may delete the job then.
-- Parameters: $2 seconds that a submission may take.
SELECT format('job %s of holder %s was accepted and is lost', s.job_id, s.holder)
FROM weir_jobs s
WHERE s.submitted_at > now() - interval '23 hours' AND s.submitted_at <= now() - make_interval(secs => $2)
  AND s.deleted_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = s.job_id)
  AND s.ended_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = s.job_id)
  AND NOT EXISTS (SELECT 1 FROM finished_jobs f WHERE f.job_id = s.job_id)
UNION ALL
SELECT format('job %s of holder %s was discarded without an attempt', s.job_id, s.holder)
FROM weir_jobs s
JOIN river_job j ON j.id = s.job_id
WHERE s.submitted_at IS NOT NULL AND j.state = 'discarded' AND j.attempt = 0
LIMIT $1
