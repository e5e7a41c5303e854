-- Reservations of ended or deleted jobs.
-- Parameters: $2 seconds that a settlement may take.
SELECT format('job %s (%s): reservation of %s for user %s',
              r.job_id, coalesce(j.state::text, 'gone'), r.reserved_amount, r.user_id)
FROM quota_reservations r
LEFT JOIN river_job j ON j.id = r.job_id
WHERE j.finalized_at <= now() - make_interval(secs => $2)
   OR j.id IS NULL AND r.created_at <= now() - make_interval(secs => $2)
LIMIT $1
