-- Records the progress of the current attempt, which the job's owner sees until the attempt ends. Call it in a
-- separate transaction: it becomes visible when you commit. It counts as a heartbeat of a worker that has registered.
--
-- | parameter | |
-- |---|---|
-- | `fraction` | 0 to 1 |
-- | `message` | at most 1000 bytes |
-- | `created_at` | when the job was created, as `weir_claim` returned it. Another job with this id is fenced out. Default: not checked |
--
-- Returns `done`; `cancelled` if the job's cancellation was requested, so that the attempt should end; `fenced_out` if
-- this attempt is no longer the current one.
--
-- Errors: 22023 for invalid arguments.
--
-- Cost: one update by key, and at most each second one more. It locks this job's reservation, and
-- at most each second the worker's row in `processes`.
--
-- Callers: other languages, as role weir_worker. The body of this rule for handlers that answer later is
-- ledger/src/attempts/sql/record_progress.sql.
CREATE OR REPLACE FUNCTION weir_progress(job_id bigint, attempt int, fraction double precision, message text DEFAULT NULL,
                              created_at timestamptz DEFAULT NULL, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    IF fraction IS NULL OR fraction NOT BETWEEN 0 AND 1 OR octet_length(message) > 1000 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'progress needs a fraction from 0 to 1 and a message of at most 1000 bytes';
    END IF;
    IF is_another_job(weir_progress.job_id, weir_progress.created_at) THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    UPDATE quota_reservations r
    SET progress = jsonb_build_object('attempt', attempt, 'fraction', fraction, 'message', weir_progress.message)
    WHERE r.job_id = weir_progress.job_id
      AND EXISTS (SELECT 1 FROM river_job j
                  WHERE j.id = weir_progress.job_id AND j.attempt = weir_progress.attempt AND (j.state = 'running') IS TRUE
                    AND is_service_kind(j.kind));
    outcome := CASE WHEN FOUND OR is_attempt_without_holder(weir_progress.job_id, weir_progress.attempt) THEN 'done'
                    ELSE 'fenced_out' END;
    IF outcome = 'done' THEN
        UPDATE processes p SET beat_at = clock_timestamp()
        FROM river_job j
        WHERE j.id = weir_progress.job_id AND p.client_id = j.attempted_by[array_upper(j.attempted_by, 1)]
          AND p.client_id NOT LIKE 'weir\_%' AND p.beat_at < clock_timestamp() - interval '1 second';
        IF is_cancelled(weir_progress.job_id) THEN
            outcome := 'cancelled';
        END IF;
    END IF;
END
$$;

COMMENT ON FUNCTION weir_progress IS
    'records the progress of an attempt for the job''s owner; outcome: done, cancelled, fenced_out';
