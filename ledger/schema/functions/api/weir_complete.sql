-- Completes an attempt inside the caller's transaction: ends the job, charges it, and promotes the user's oldest
-- parked job. Workers find that job within 50 ms of your commit.
--
-- | parameter | |
-- |---|---|
-- | `output` | at most 4 MiB |
-- | `used` | what the job used, at most what it reserved. Default: everything it reserved |
-- | `created_at` | when the job was created, as `weir_claim` returned it. Another job with this id is fenced out. Default: not checked |
--
-- | outcome | |
-- |---|---|
-- | `done` | `charged` is the charge |
-- | `fenced_out` | this attempt is no longer the current one. Nothing was changed: roll back what the attempt did |
--
-- Errors: 22023 for invalid arguments; 25000 unless the isolation level is READ COMMITTED; 40001 when another
-- transaction has just moved the job to another holder (retry).
--
-- Cost: some five updates by key. It locks the user's account until the transaction ends, so call it last.
--
-- Callers: other languages, as role weir_worker; ledger/src/attempts/outstanding.rs. Rust settles groups by
-- ledger/src/settlement/transaction.rs; native/tests/suite/differential.rs compares the two.
CREATE OR REPLACE FUNCTION weir_complete(job_id bigint, attempt int, output jsonb DEFAULT NULL, used bigint DEFAULT NULL,
                              created_at timestamptz DEFAULT NULL, OUT outcome text, OUT charged bigint)
LANGUAGE plpgsql SECURITY DEFINER
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
    -- The function updates the counters itself, and turns the triggers off until it returns. A function owned by an
    -- ordinary role cannot have the setting in its definition.
    counters CONSTANT text := coalesce(current_setting('weir.counters', true), '');
    is_large CONSTANT boolean := coalesce(is_large_output(output), false);
    of_holder uuid;
BEGIN
    PERFORM require_read_committed('weir_complete');
    IF is_large AND octet_length(output::text) > 4194304 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the output is larger than 4 MiB',
            HINT = 'store it elsewhere, and complete the job with its location';
    END IF;
    IF used < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'used must be 0 or more',
            HINT = 'leave it out to charge the whole reservation';
    END IF;
    charged := 0;
    IF is_another_job(weir_complete.job_id, weir_complete.created_at) THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    -- Lock the holder first, as every transaction does. Then lock the job, so that no process takes over its attempt.
    of_holder := (lock_holder_of_job(weir_complete.job_id)).holder;
    PERFORM set_config('weir.counters', 'kept', true);
    -- As in River's JobCompleteTx, but only for the attempt that did the work.
    UPDATE river_job j
    SET state = 'completed', finalized_at = clock_timestamp(),
        metadata = j.metadata || jsonb_strip_nulls(jsonb_build_object('weir:used', weir_complete.used))
            || CASE WHEN output <> 'null' AND NOT is_large THEN jsonb_build_object('output', output) ELSE '{}' END,
        attempted_at = attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at)
    WHERE j.id = weir_complete.job_id AND j.attempt = weir_complete.attempt AND (j.state = 'running') IS TRUE
      AND is_service_kind(j.kind);
    IF FOUND THEN
        outcome := 'done';
        IF is_large THEN
            INSERT INTO job_outputs AS o (job_id, output) VALUES (weir_complete.job_id, weir_complete.output)
            ON CONFLICT (job_id) DO UPDATE SET output = excluded.output;
        END IF;
        charged := end_reservation(weir_complete.job_id, of_holder, true, weir_complete.used);
    ELSE
        outcome := 'fenced_out';
    END IF;
    PERFORM set_config('weir.counters', counters, true);
END
$$;

COMMENT ON FUNCTION weir_complete IS
    'completes and charges a job in the caller''s transaction, and promotes the next; outcome: done, fenced_out';
