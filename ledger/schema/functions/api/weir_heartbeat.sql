-- Keeps the running jobs of a worker that claims with `weir_claim`, and tells it what has become of its attempts. Call
-- it every two seconds, and commit. The first call or claim registers the worker. A registered worker without a
-- heartbeat, a claim or a progress report for ten seconds is dead. `weir schedule` makes its jobs available to others,
-- and its attempts are fenced out. So a worker stops its handlers after eight seconds without a successful call, by its
-- own clock.
--
-- | parameter | |
-- |---|---|
-- | `worker` | the process, as in `weir_claim`. Each process has a different name |
-- | `attempts` | the attempts that the worker knows: `[{"job_id": 17, "attempt": 1}, …]`, at most 10 000. Other members are ignored. Other attempts of its name are lost ten seconds after their claim, because its answer did not arrive: their jobs run again. Null, the default: all attempts of its name. Attempts at jobs of other kinds than the services' are left alone |
--
-- Returns a row for each of these attempts.
--
-- | state | |
-- |---|---|
-- | `running` | the attempt has its job |
-- | `cancelled` | the job's cancellation was requested. Stop the handler, and end the attempt: `weir_fail` answers `cancelled` |
-- | `overdue` | the attempt takes longer than the service's `timeout`. Stop the handler, and call `weir_fail`. After another thirty seconds, the job is taken over |
-- | `taken_over` | the attempt is over. Stop the handler, and write nothing: every call for it answers `fenced_out` |
--
-- Errors: 22023 for an invalid name or list.
--
-- Cost: one write, one index range over the running jobs, and for each attempt one look-up and one small write.
--
-- Callers: other languages, as role weir_worker.
CREATE OR REPLACE FUNCTION weir_heartbeat(worker text, attempts jsonb DEFAULT NULL)
RETURNS TABLE (job_id bigint, attempt int, state text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
#variable_conflict use_column
DECLARE
    ids bigint[];
    numbers int[];
BEGIN
    PERFORM require_worker_name(worker);
    IF jsonb_typeof(attempts) <> 'array' OR jsonb_array_length(attempts) > 10000 OR EXISTS (
        SELECT FROM jsonb_array_elements(attempts) a
        WHERE (a ->> 'job_id' ~ '^[0-9]{1,18}$' AND a ->> 'attempt' ~ '^[0-9]{1,5}$') IS NOT TRUE
    ) THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'attempts must be a JSON array of at most 10000 objects such as {"job_id": 17, "attempt": 1}';
    END IF;
    IF attempts IS NULL THEN
        SELECT array_agg(j.id), array_agg(j.attempt) INTO ids, numbers
        FROM river_job j
        WHERE j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] = worker AND is_service_kind(j.kind);
    ELSE
        SELECT array_agg((a ->> 'job_id')::bigint), array_agg((a ->> 'attempt')::int) INTO ids, numbers
        FROM jsonb_array_elements(attempts) a;
    END IF;
    PERFORM record_heartbeat(worker);
    RETURN QUERY
    SELECT c.job_id, c.attempt, c.state FROM check_attempts(worker, ids, numbers, attempts IS NOT NULL) c;
END
$$;

COMMENT ON FUNCTION weir_heartbeat IS
    'keeps the running jobs of a worker, and returns the states of its attempts: running, cancelled, overdue, taken_over';
