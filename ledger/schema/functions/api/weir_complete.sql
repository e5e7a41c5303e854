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
-- | `done` | `charged` is the charge. A job that completes after its cancellation was requested is charged like any other |
-- | `fenced_out` | this attempt is no longer the current one. Nothing was changed: roll back what the attempt did |
--
-- Errors: 22023 for invalid arguments; 25000 unless the isolation level is READ COMMITTED; 40001 when another
-- transaction has just moved the job to another holder (retry).
--
-- Cost: as settle_many(). It locks the user's account until the transaction ends, so call it last.
--
-- Callers: weir_settle_many; other languages, as role weir_worker; ledger/src/attempts/outstanding.rs.
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
BEGIN
    PERFORM require_read_committed('weir_complete');
    IF is_large_output(output) AND octet_length(output::text) > 4194304 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the output is larger than 4 MiB',
            HINT = 'store it elsewhere, and complete the job with its location';
    END IF;
    IF used < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'used must be 0 or more',
            HINT = 'leave it out to charge the whole reservation';
    END IF;
    outcome := 'fenced_out';
    charged := 0;
    IF NOT is_another_job(weir_complete.job_id, weir_complete.created_at)
       AND EXISTS (SELECT FROM river_job j WHERE j.id = weir_complete.job_id AND is_service_kind(j.kind)) THEN
        SELECT s.outcome, s.charged INTO outcome, charged
        FROM settle_one(weir_complete.job_id, weir_complete.attempt, weir_complete.used, weir_complete.output) s;
    END IF;
END
$$;

COMMENT ON FUNCTION weir_complete IS
    'completes and charges a job in the caller''s transaction, and promotes the next; outcome: done, fenced_out';
