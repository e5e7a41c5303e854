-- Cancels submitted jobs that wait for a slot without a reservation: their user was deleted with all that was reserved,
-- and nothing would ever wake them. From a slice of the submissions. $1 the last job of the slice before, $2 how many a
-- slice has. `last` is null when the slice was the last.
WITH slice AS MATERIALIZED (
    SELECT job_id FROM submissions WHERE job_id > $1 ORDER BY job_id LIMIT $2
), abandoned AS (
    UPDATE river_job j
    SET state = 'cancelled', finalized_at = now(),
        metadata = j.metadata || jsonb_build_object('weir:reason', 'the account that submitted it was deleted')
    FROM slice s
    WHERE j.id = s.job_id AND (j.state = 'pending') IS TRUE
      AND NOT EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = s.job_id)
    RETURNING j.id
)
SELECT (SELECT CASE WHEN count(*) = $2 THEN max(job_id) END FROM slice) AS last,
       (SELECT count(*) FROM abandoned) AS cancelled
