-- Cancels submitted jobs without a reservation whose user was deleted with all that was reserved: nothing would ever
-- wake those that wait for a slot, and nobody pays for the others. From a slice of the submissions, looked up by key:
-- most have a reservation, and cost nothing more. $1 the last job of the slice before, $2 how many a slice has. `last` is
-- null when the slice was the last, `done` is how many were cancelled.
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
    SELECT j.id
    FROM unreserved s
    CROSS JOIN LATERAL (
        SELECT k.id FROM river_job k
        WHERE k.id = s.job_id
          AND (k.state = 'pending' OR s.is_gone AND k.state IN ('available', 'scheduled', 'retryable')) IS TRUE
        OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED
    ) j
), abandoned AS (
    UPDATE river_job j
    SET state = 'cancelled', finalized_at = now(),
        metadata = j.metadata || jsonb_build_object('weir:reason', 'the account that submitted it was deleted',
                                                            'weir:reason_attempt', j.attempt)
    FROM free f
    WHERE j.id = f.id
    RETURNING j.id
)
SELECT (SELECT CASE WHEN count(*) = $2 THEN max(job_id) END FROM slice) AS last,
       (SELECT count(*) FROM abandoned) AS done
