-- Every reservation that its job no longer justifies: the job is at its end, or gone (an orphan), or waits for its
-- next attempt while it holds a slot.
SELECT r.job_id, j.id IS NULL, r.user_id
FROM quota_reservations r
LEFT JOIN river_job j ON j.id = r.job_id
WHERE j.id IS NULL
   OR j.finalized_at IS NOT NULL
   OR r.admitted_at IS NOT NULL AND j.state IN ('retryable', 'scheduled')
LIMIT 10000
