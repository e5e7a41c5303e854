-- Marks a running attempt as one with an outstanding answer, unless its cancellation was requested. Skips a unique job
-- with a key that does not count while it is pending, because another job could take the key.
-- Parameters: $1 job, $2 claim, $3 seconds that the handler may be silent, $4 when the job was created. Returns
-- no row when the attempt is over already.
WITH attempt AS MATERIALIZED (
    SELECT j.id,
           j.metadata ? 'cancel_attempted_at' AS is_cancelled,
           may_be_pending(j.unique_key, j.unique_states) AS may_wait
    FROM river_job j
    WHERE j.id = $1 AND (j.state = 'running') IS TRUE AND claim_of(j.attempt, j.attempted_by) = $2
      AND j.created_at = $4
    FOR NO KEY UPDATE
), waiting AS (
    UPDATE river_job j SET state = 'pending'
    FROM attempt a
    WHERE j.id = a.id AND NOT a.is_cancelled AND a.may_wait
    RETURNING j.id
), outstanding AS (
    INSERT INTO outstanding_attempts AS o (job_id, claim, patience, deadline_at)
    SELECT w.id, $2, make_interval(secs => $3::float8), clock_timestamp() + make_interval(secs => $3::float8)
    FROM waiting w
    -- The row of an attempt that was ended by hand.
    ON CONFLICT (job_id) DO UPDATE
        SET claim = excluded.claim, patience = excluded.patience, deadline_at = excluded.deadline_at,
            began_at = excluded.began_at
    RETURNING job_id
)
SELECT (SELECT count(*) > 0 FROM outstanding) AS is_outstanding, a.is_cancelled, a.may_wait
FROM attempt a
