-- Completes the jobs as River's JobCompleteTx does, but only for the attempt that did the work. A job that was taken
-- over does not change. Deletes the reservations of completed jobs. Returns one row per deleted reservation, and one per
-- completed job, in which `holder` is null. After a failover, an id may have been reused; created_at distinguishes the
-- jobs.
-- Parameters:
--
-- - $1: ids.
-- - $2: attempts.
-- - $3: metadata to merge.
-- - $4: when the jobs were created (null: not checked).
-- - $5: outputs.
--
-- "IS TRUE" keeps the planner from using the state to choose an index: it might scan all running jobs for each one of
-- these. The array keeps it from scanning all reservations, which it does when the table was nearly empty at the last
-- ANALYZE.
WITH done AS (
    UPDATE river_job j
    SET state = 'completed', finalized_at = now(),
        metadata = j.metadata || d.metadata
            || CASE WHEN d.output <> 'null' AND NOT is_large_output(d.output) THEN jsonb_build_object('output', d.output)
                    ELSE '{}' END,
        attempted_at = attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at)
    FROM unnest($1::bigint[], $2::smallint[], $3::jsonb[], $4::timestamptz[], $5::jsonb[])
        AS d (id, attempt, metadata, created_at, output)
    WHERE j.id = d.id AND j.attempt = d.attempt AND (j.state = 'running') IS TRUE
      AND (d.created_at IS NULL OR j.created_at = d.created_at)
    RETURNING j.id, j.metadata ->> 'weir:request_id' AS request_id, d.output
), stored AS (
    INSERT INTO job_outputs AS o (job_id, output)
    SELECT d.id, d.output FROM done d WHERE is_large_output(d.output)
    ON CONFLICT (job_id) DO UPDATE SET output = excluded.output
), released AS (
    DELETE FROM quota_reservations r
    WHERE r.job_id = ANY (ARRAY(SELECT d.id FROM done d))
    RETURNING r.holder, r.event_type, r.admitted_at IS NOT NULL AS held_slot, r.parked_at IS NOT NULL AS parked,
              r.job_id, r.user_id, r.period_start, r.windows, r.created_at, r.reserved_amount, r.from_grants, r.overage
)
SELECT holder, event_type, held_slot, parked, job_id, user_id, period_start, windows, created_at, reserved_amount,
       NULL AS request_id, from_grants, overage
FROM released
UNION ALL
SELECT NULL, NULL, NULL, NULL, id, NULL, NULL, NULL, NULL, NULL, request_id, NULL, NULL FROM done
