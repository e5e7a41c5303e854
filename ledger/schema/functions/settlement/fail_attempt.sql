-- Records a failed attempt as River does, and frees its slot. weir_fail() for jobs of any kind. A job that retries keeps
-- its quota, and asks for a slot shortly before it is due.
-- Errors: 22023 for an invalid retry_at; 25000 for another isolation level than READ COMMITTED; 40001 as
-- settle_one().
-- Cost: some six look-ups by key and three writes. Waits for the account's lock.
-- Callers: weir_fail; ledger/src/attempts/outstanding.rs.
CREATE OR REPLACE FUNCTION fail_attempt(job_id bigint, attempt int, error text, retry_at timestamptz, OUT outcome text)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    job river_job;
    ends river_job_state;
    again timestamptz;
BEGIN
    PERFORM require_read_committed('weir_fail');
    IF NOT isfinite(retry_at) OR retry_at > clock_timestamp() + interval '366 days' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'retry_at must be within 366 days';
    END IF;
    PERFORM lock_holder_of_job(fail_attempt.job_id);
    SELECT * INTO job FROM river_job j
    WHERE j.id = fail_attempt.job_id AND j.attempt = fail_attempt.attempt AND (j.state = 'running') IS TRUE
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    ends := state_after_failure(job.metadata, job.attempt, job.max_attempts, 'retryable');
    -- Not immediately: River's client may still report this attempt, and its report does not identify the attempt.
    again := greatest(
        coalesce(fail_attempt.retry_at,
                 clock_timestamp() + make_interval(secs => retry_pause(job.kind, coalesce(cardinality(job.errors), 0)))),
        clock_timestamp() + interval '1 second');
    UPDATE river_job j
    SET state = ends,
        scheduled_at = CASE WHEN ends = 'retryable' THEN again ELSE j.scheduled_at END,
        finalized_at = CASE WHEN ends <> 'retryable' THEN clock_timestamp() END,
        errors = array_append(j.errors, attempt_error(
            j.attempt, attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at),
            left(coalesce(fail_attempt.error, ''), 10000)))
    WHERE j.id = job.id;
    outcome := CASE ends WHEN 'retryable' THEN 'retry' ELSE ends::text END;
    PERFORM settle_one(job.id, NULL, NULL, NULL);
END
$$;
