SELECT format('job %s (%s): expired at %s', r.job_id, j.state, r.expires_at)
FROM quota_reservations r
JOIN river_job j ON j.id = r.job_id
WHERE j.finalized_at IS NULL AND r.expires_at < now()
LIMIT $1
