-- Renews the reservations of unfinished jobs in a slice. Skips locked reservations, which are being settled.
-- Parameters: $1 the last job of the previous slice, $2 the last of this one, $3 seconds to live.
UPDATE quota_reservations r
SET expires_at = now() + make_interval(secs => $3::float8)
FROM (
    SELECT q.job_id
    FROM quota_reservations q
    WHERE q.job_id > $1 AND q.job_id <= $2 AND q.expires_at < now() + make_interval(secs => $3::float8 / 2)
      AND EXISTS (SELECT 1 FROM river_job j WHERE j.id = q.job_id AND j.finalized_at IS NULL)
    ORDER BY q.job_id
    FOR NO KEY UPDATE OF q SKIP LOCKED
) old
WHERE r.job_id = old.job_id
