-- An unclaimed job or one with a current attempt, and its reservation. Locks the job's row, so that it cannot be taken
-- over until the commit. Skips an unclaimed unique job with a key that does not count while the job is pending.
-- `submitted_amount` is what its submission reserved, unless that was charged already.
-- Parameters: $1 job id, $2 attempt, NULL for an unclaimed job.
SELECT r.job_id IS NOT NULL AS has_reservation,
       coalesce(r.admitted_at IS NOT NULL, false) AS admitted,
       coalesce(r.parked_at IS NOT NULL, false) AS parked,
       CASE WHEN NOT EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = j.id) THEN s.reserved_amount END
           AS submitted_amount
FROM river_job j
LEFT JOIN quota_reservations r ON r.job_id = j.id
LEFT JOIN submissions s ON s.job_id = j.id
WHERE j.id = $1
  AND CASE WHEN $2::smallint IS NOT NULL THEN j.attempt = $2 AND j.state = 'running'
           ELSE j.state = 'available' AND may_be_pending(j.unique_key, j.unique_states) END
FOR NO KEY UPDATE OF j
