-- Reservations of jobs that ended in the last seconds, whoever ended them.
SELECT r.job_id, false, r.user_id
FROM river_job j
JOIN quota_reservations r ON r.job_id = j.id
WHERE j.state IN ('cancelled', 'completed', 'discarded')
  AND j.finalized_at > now() - interval '4 seconds'
LIMIT 10000
