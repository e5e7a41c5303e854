-- Frees the slot of an attempt that weir_admit() admitted, and makes the user's next waiting job available at once. Call it
-- when the attempt's work is over, before River records its end. A job that was submitted through Weir keeps its slot
-- until its settlement.
--
-- | outcome | |
-- |---|---|
-- | `released` | the slot is free |
-- | `kept` | the attempt is not the job's current one, or has no slot of weir_admit() |
--
-- Cost: as a settlement. Waits for the account's lock. If a job becomes available, it notifies River's clients at the
-- commit, so call it in a transaction of its own.
--
-- Callers: other languages, as role weir_worker; ledger/src/middleware.rs.
CREATE OR REPLACE FUNCTION weir_release(job_id bigint, attempt int, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    of_holder uuid;
    of_meter usage_event_type;
    waiting int;
BEGIN
    outcome := 'kept';
    SELECT l.holder, l.event_type INTO of_holder, of_meter FROM lock_holder_of_job(weir_release.job_id) l;
    UPDATE weir_jobs r SET admitted_at = NULL
    WHERE r.job_id = weir_release.job_id AND r.admitted_at IS NOT NULL AND r.reserved_amount = 0
      AND r.submitted_at IS NULL
      AND EXISTS (SELECT FROM river_job j
                  WHERE j.id = r.job_id AND j.attempt = weir_release.attempt AND j.state = 'running');
    IF FOUND THEN
        outcome := 'released';
        UPDATE holders h SET slots_in_use = h.slots_in_use - 1, changes = h.changes + 1
        WHERE h.ctid = (SELECT k.ctid FROM holders k WHERE k.holder = of_holder AND k.event_type = of_meter
                        ORDER BY k.generation DESC LIMIT 1)
        RETURNING h.parked INTO waiting;
    END IF;
    IF waiting > 0 THEN
        PERFORM wake_queue(q.queue)
        FROM (
            SELECT DISTINCT m.queue FROM settle_many('{}', false, '{}', ARRAY[of_holder], ARRAY[of_meter]) m
            WHERE m.outcome = 'promoted'
        ) q;
    END IF;
END
$$;

COMMENT ON FUNCTION weir_release IS
    'frees the slot of weir_admit and starts the user''s next waiting job; outcome: released, kept';
