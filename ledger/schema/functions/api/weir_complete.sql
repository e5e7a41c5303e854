-- Completes an attempt inside the caller's transaction: ends the job, charges it, and promotes the user's oldest
-- parked job. Workers are notified when you commit.
--
-- | parameter | |
-- |---|---|
-- | `output` | at most 4 MiB |
-- | `used` | what the job used, at most what it reserved. Default: everything it reserved |
--
-- | outcome | |
-- |---|---|
-- | `done` | `charged` is the charge |
-- | `fenced_out` | this attempt is no longer the current one. Nothing was changed: roll back what the attempt did |
--
-- Errors: 22023 for invalid arguments; 25000 for another isolation level than READ COMMITTED.
--
-- Cost: one update of this job and one of the promoted job. It locks the user's account until the transaction ends, so
-- call it last.
--
-- Callers: other languages, as role weir_worker. Rust decides the same in ledger/src/settlement/; a differential test
-- holds the two equal.
CREATE OR REPLACE FUNCTION weir_complete(job_id bigint, attempt int, output jsonb DEFAULT NULL, used bigint DEFAULT NULL,
                              OUT outcome text, OUT charged bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- The counters are updated here and not by the triggers, until the caller goes on. A function of an ordinary owner
    -- cannot have the setting itself.
    counters CONSTANT text := coalesce(current_setting('weir.counters', true), '');
    bytes CONSTANT int := coalesce(octet_length(output::text), 0);
    of_holder uuid;
    held record;
    next record;
    ended record;
    changed record;
    given bigint[] := '{}';
    told text[] := '{}';
BEGIN
    PERFORM require_read_committed('weir_complete');
    IF bytes > 4194304 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the output is larger than 4 MiB',
            HINT = 'store it elsewhere and complete the job with where it is';
    END IF;
    IF used < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'used must be 0 or more',
            HINT = 'leave it out to charge all that is reserved';
    END IF;
    charged := 0;
    FOR look IN 1..2 LOOP
        -- The holder first, as everybody locks; then the job, so that from here on its attempt is taken from nobody; and the
        -- reservation, so that it is seen as it is by then.
        SELECT h.holder, h.event_type::text AS meter, h.user_id, j.unique_key IS NULL AS alone,
               h.parked - (r.parked_at IS NOT NULL)::int AS waiting,
               h.slots_in_use - (r.admitted_at IS NOT NULL)::int AS in_use
        INTO held
        FROM quota_reservations r
        JOIN holders h ON h.holder = r.holder AND h.event_type = r.event_type
        JOIN river_job j ON j.id = r.job_id
        WHERE r.job_id = weir_complete.job_id AND j.attempt = weir_complete.attempt AND (j.state = 'running') IS TRUE
          AND is_service_kind(j.kind)
        FOR NO KEY UPDATE OF h, j, r;
        -- Without one, it is not this attempt's any more, or it has no reservation, or somebody deleted the holder, which is
        -- made again.
        EXIT WHEN FOUND;
        of_holder := (lock_holder_of_job(weir_complete.job_id)).holder;
        EXIT WHEN of_holder IS NULL;
    END LOOP;
    of_holder := coalesce(held.holder, of_holder);
    -- Where a waiting job may have the key of this one, they take turns: a unique index looks at each row by itself.
    next := next_parked(held.holder, held.meter, held.user_id, CASE WHEN held.alone THEN held.waiting ELSE 0 END, held.in_use);
    PERFORM set_config('weir.counters', 'kept', true);
    FOR changed IN
        -- As River's JobCompleteTx does it, but only the attempt that did the work.
        UPDATE river_job j
        SET state = CASE WHEN j.id = weir_complete.job_id THEN 'completed' ELSE 'available' END::river_job_state,
            finalized_at = CASE WHEN j.id = weir_complete.job_id THEN clock_timestamp() ELSE j.finalized_at END,
            scheduled_at = CASE j.state WHEN 'running' THEN j.scheduled_at
                                        WHEN 'pending' THEN greatest(j.scheduled_at, clock_timestamp())
                                        ELSE clock_timestamp() END,
            queue = CASE WHEN j.id = weir_complete.job_id THEN j.queue ELSE queue_in_lane(j.queue, next.lane) END,
            metadata = CASE WHEN j.id = weir_complete.job_id
                            THEN j.metadata || jsonb_strip_nulls(jsonb_build_object('weir:used', weir_complete.used))
                                || CASE WHEN output <> 'null' AND bytes <= 4096
                                        THEN jsonb_build_object('output', output) ELSE '{}' END
                            ELSE j.metadata END,
            attempted_at = CASE WHEN j.id = weir_complete.job_id
                                THEN attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at)
                                ELSE j.attempted_at END
        WHERE j.id = ANY (next.jobs || weir_complete.job_id)
          AND CASE WHEN j.id = weir_complete.job_id
                   THEN j.attempt = weir_complete.attempt AND (j.state = 'running') IS TRUE AND is_service_kind(j.kind)
                   ELSE (j.state IN ('pending', 'scheduled')) IS TRUE END
        RETURNING j.id, j.queue
    LOOP
        IF changed.id = weir_complete.job_id THEN
            outcome := 'done';
            CONTINUE;
        END IF;
        given := given || changed.id;
        IF changed.queue <> ALL (told) THEN
            told := told || changed.queue;
            PERFORM wake_queue(changed.queue);
        END IF;
    END LOOP;
    IF outcome = 'done' THEN
        IF bytes > 4096 THEN
            INSERT INTO job_outputs AS o (job_id, output) VALUES (weir_complete.job_id, weir_complete.output)
            ON CONFLICT (job_id) DO UPDATE SET output = excluded.output;
        END IF;
        IF held.alone THEN
            ended := charge_reservation(weir_complete.job_id, of_holder, true, weir_complete.used);
            charged := ended.charged;
            PERFORM update_slots(of_holder, held.meter, ended.freed, ended.unparked, given, next.slots);
        ELSE
            charged := end_reservation(weir_complete.job_id, of_holder, true, weir_complete.used);
        END IF;
    ELSE
        outcome := 'fenced_out';
    END IF;
    PERFORM set_config('weir.counters', counters, true);
END
$$;

COMMENT ON FUNCTION weir_complete IS
    'completes and charges a job in the caller''s transaction, and promotes the next; outcome: done, fenced_out';
