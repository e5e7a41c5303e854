-- Cancels the jobs in a slice of a user's jobs that wait for a slot, a worker or another attempt.
-- Parameters: $1 user, $2 the last job of the previous slice, $3 the size of a slice. `last` is null after the last
-- slice. Skips locked jobs, which are being ended or claimed.
WITH slice AS MATERIALIZED (
    SELECT s.job_id FROM weir_jobs s WHERE s.holder = $1 AND s.job_id > $2 ORDER BY s.job_id LIMIT $3
), free AS (
    SELECT j.id
    FROM slice s
    JOIN river_job j ON j.id = s.job_id
    WHERE (j.state IN ('available', 'pending', 'retryable', 'scheduled')) IS TRUE
      -- A job with an outstanding answer counts as running.
      AND NOT (j.state = 'pending' AND EXISTS (SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by)))
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
), cancelled AS (
    UPDATE river_job j
    SET state = 'cancelled', finalized_at = now(),
        metadata = j.metadata || jsonb_build_object('cancel_attempted_at', now())
    FROM free f
    WHERE j.id = f.id
    RETURNING j.id
)
SELECT ARRAY(SELECT id FROM cancelled) AS cancelled,
       (SELECT CASE WHEN count(*) = $3 THEN max(job_id) END FROM slice) AS last
