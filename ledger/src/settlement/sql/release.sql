-- Deletes the reservations of jobs that were ended elsewhere or deleted. Jobs that failed and will be retried keep
-- their quota and release their slot, as in fail_attempt().
-- Parameters: $1 job ids.
--
-- The jobs' rows are locked and read by the current clock. A retry that becomes due at the same time is either claimed
-- before this and keeps its slot, or claimed after it and requests one. Every row is looked up by its key, regardless
-- of the planner's estimates of the table sizes.
WITH seen AS MATERIALIZED (
    SELECT a.job_id, j.state, j.ended, j.waits, j.scheduled_at, j.used, j.request_id
    FROM (SELECT DISTINCT id AS job_id FROM unnest($1::bigint[]) AS u (id) ORDER BY 1) a
    LEFT JOIN LATERAL (
        SELECT j.state, j.scheduled_at,
               j.finalized_at IS NOT NULL AS ended,
               j.state IN ('retryable', 'scheduled')
                   OR j.state = 'available' AND j.scheduled_at > clock_timestamp() AS waits,
               used_of(j.metadata) AS used,
               j.metadata ->> 'weir:request_id' AS request_id
        FROM river_job j WHERE j.id = a.job_id OFFSET 0
        FOR NO KEY UPDATE
    ) j ON true
), answers AS (
    -- The attempt is over, so its handler's later reports must not count, even if the job is retried. Deleted before
    -- the reservation, in the order in which reports lock the two.
    DELETE FROM outstanding_attempts WHERE job_id = ANY (ARRAY(SELECT s.job_id FROM seen s WHERE coalesce(s.ended, true)))
    RETURNING job_id
), ended AS (
    DELETE FROM quota_reservations r
    USING seen s
    WHERE r.job_id = s.job_id AND coalesce(s.ended, true) AND (SELECT count(*) FROM answers) >= 0
    RETURNING r.holder, r.event_type, r.admitted_at IS NOT NULL AS held_slot, r.parked_at IS NOT NULL AS parked,
              r.job_id, r.user_id, r.period_start, r.windows, r.created_at, r.reserved_amount, s.request_id,
              true AS ended,
              s.state::text AS state, s.used, r.from_grants, r.overage
), yielded AS (
    UPDATE quota_reservations r
    -- The job asks for a slot again shortly before it is due.
    SET admitted_at = NULL, due_at = s.scheduled_at - retry_lead()
    FROM seen s
    WHERE r.job_id = s.job_id AND r.admitted_at IS NOT NULL AND s.waits
    RETURNING r.holder, r.event_type, true, false, r.job_id, r.user_id, r.period_start, r.windows,
              r.created_at, r.reserved_amount,
              s.request_id, false, s.state::text, s.used, r.from_grants, r.overage
)
SELECT holder, event_type, held_slot, parked, job_id, user_id, period_start, windows, created_at, reserved_amount,
       request_id, ended, state, used, from_grants, overage
FROM ended
UNION ALL
SELECT * FROM yielded
