-- Handles submitted jobs without a reservation, which would never start. Cancels them if the user was deleted. Makes
-- other pending ones available, so that they reserve again. Reads a slice of the submissions. Most
-- have a reservation or have ended, and cost little more.
-- Parameters: $1 the last job of the previous slice, $2 the size of a slice. `last` is null after the last slice,
-- `done` is the number of cancelled jobs.
WITH slice AS MATERIALIZED (
    SELECT b.job_id, b.ended_at, b.user_id IS NOT NULL AND u.found IS NULL AS is_gone
    FROM (SELECT * FROM weir_jobs WHERE job_id > $1 AND submitted_at IS NOT NULL ORDER BY job_id LIMIT $2) b
    LEFT JOIN LATERAL (SELECT 1 AS found FROM users k WHERE k.id = b.user_id OFFSET 0) u ON true
), free AS (
    SELECT j.id, s.is_gone
    FROM slice s
    CROSS JOIN LATERAL (
        SELECT k.id FROM river_job k
        WHERE k.id = s.job_id
          AND CASE WHEN s.is_gone THEN k.state IN ('pending', 'available', 'scheduled', 'retryable')
                   -- Skips a running attempt with an outstanding answer.
                   ELSE k.state = 'pending'
                        AND NOT EXISTS (SELECT 1 FROM outstanding_answers(k.id, k.attempt, k.attempted_by))
              END IS TRUE
        OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED
    ) j
    WHERE s.ended_at IS NOT NULL
), woken AS (
    UPDATE river_job j
    SET state = CASE WHEN f.is_gone THEN 'cancelled' ELSE 'available' END::river_job_state,
        finalized_at = CASE WHEN f.is_gone THEN now() END,
        metadata = CASE WHEN f.is_gone
                        THEN j.metadata || jsonb_build_object('weir:reason', 'the account that submitted it was deleted',
                                                              'weir:reason_attempt', j.attempt)
                        ELSE j.metadata END
    FROM free f
    WHERE j.id = f.id
    RETURNING f.is_gone
)
SELECT (SELECT CASE WHEN count(*) = $2 THEN max(job_id) END FROM slice) AS last,
       (SELECT count(*) FROM woken WHERE is_gone) AS done
