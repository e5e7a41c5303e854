-- Handles submitted jobs without a reservation, which would never start. Cancels them if the user was deleted. Makes
-- other pending ones available, so that they reserve again. Reads a slice of the submissions and looks up their
-- reservations by key. Most have one, and cost nothing more.
-- Parameters: $1 the last job of the previous slice, $2 the size of a slice. `last` is null after the last slice,
-- `done` is the number of cancelled jobs.
WITH slice AS MATERIALIZED (
    SELECT b.job_id, b.user_id IS NOT NULL AND u.found IS NULL AS is_gone
    FROM (SELECT * FROM submissions WHERE job_id > $1 ORDER BY job_id LIMIT $2) b
    LEFT JOIN LATERAL (SELECT 1 AS found FROM users k WHERE k.id = b.user_id OFFSET 0) u ON true
), unreserved AS MATERIALIZED (
    SELECT s.job_id, s.is_gone
    FROM slice s
    LEFT JOIN LATERAL (SELECT 1 AS found FROM quota_reservations r WHERE r.job_id = s.job_id OFFSET 0) r ON true
    WHERE r.found IS NULL
), free AS (
    SELECT j.id, s.is_gone
    FROM unreserved s
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
