-- Starts attempts at the next available jobs of a queue, by priority and time. Skips jobs that other workers are
-- claiming. Commit before you start work, so that others see that the jobs run.
--
-- A claim registers the worker. Then call `weir_heartbeat` every two seconds: after ten seconds without a heartbeat, a
-- claim or a progress, others get the worker's jobs.
--
-- | parameter | |
-- |---|---|
-- | `queue` | one of the service's queues |
-- | `worker` | the process. No other process has the same name: 1 to 100 letters, digits, `.`, `_` and `-`, not starting with `weir_` |
-- | `most` | 1 to 1000 jobs. Default: 1 |
--
-- A job needs a slot if its arguments name a user. A job without a user (`user_id` absent, empty or not a text) needs
-- none. A paused queue returns no jobs.
--
-- Pass `created_at` to the functions that end the attempt. After a failover that lost commits, a new job may have the
-- id and the attempt of a lost one; its time differs. The clients of this repository pass it.
--
-- Errors: 22023 for invalid arguments.
--
-- Cost: one scan of River's index of available jobs, one update per job, and one write.
--
-- Callers: other languages, as role weir_worker.
CREATE OR REPLACE FUNCTION weir_claim(queue text, worker text, most int DEFAULT 1)
RETURNS TABLE (job_id bigint, attempt int, kind text, args jsonb, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
#variable_conflict use_column
BEGIN
    IF most IS NULL OR most NOT BETWEEN 1 AND 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a worker can claim 1 to 1000 jobs at once';
    END IF;
    PERFORM require_worker_name(worker);
    RETURN QUERY
    WITH picked AS MATERIALIZED (
        SELECT j.id
        FROM river_job j
        WHERE j.state = 'available' AND j.queue = weir_claim.queue AND j.scheduled_at <= clock_timestamp()
          AND is_service_kind(j.kind)
          AND NOT EXISTS (SELECT 1 FROM river_queue q
                          WHERE q.name IN (weir_claim.queue, '*') AND q.paused_at IS NOT NULL)
          AND ((jsonb_typeof(j.args -> 'user_id') IS DISTINCT FROM 'string' OR j.args ->> 'user_id' = '')
                   AND NOT EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id)
               OR EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id AND r.admitted_at IS NOT NULL)
               OR NOT (SELECT s.counts_slots FROM weir_settings s))
        ORDER BY j.priority, j.scheduled_at, j.id
        LIMIT most
        FOR UPDATE SKIP LOCKED
    )
    UPDATE river_job j
    SET state = 'running', attempt = j.attempt + 1, attempted_at = clock_timestamp(),
        attempted_by = (coalesce(j.attempted_by, '{}'))[greatest(coalesce(cardinality(j.attempted_by), 0) - 98, 1):] || worker
    FROM picked p
    WHERE j.id = p.id
    RETURNING j.id, j.attempt::int, j.kind, j.args, j.created_at;
    IF FOUND THEN
        PERFORM record_heartbeat(worker);
    END IF;
END
$$;

COMMENT ON FUNCTION weir_claim IS
    'starts attempts at the next jobs of a queue; commit before you work, so that others see that the jobs run';
