-- $1 seconds to live.
UPDATE quota_reservations r
SET expires_at = now() + make_interval(secs => $1::float8)
WHERE r.expires_at < now() + make_interval(secs => $1::float8 / 2)
  AND EXISTS (SELECT 1 FROM river_job j WHERE j.id = r.job_id AND j.finalized_at IS NULL)
