-- Submits a job of a service in `weir.toml` for a user, inside the caller's transaction.
--
-- | parameter | |
-- |---|---|
-- | `subject` | the user: see [identities](../how-to/identities.md). A new user is created on the default plan |
-- | `service` | the service's name |
-- | `args` | a JSON object of at most 256 KiB. Its `user_id` is set |
-- | `amount` | the maximum amount that the job may use, 0 to 10^15. Default: set by the service's handler |
-- | `options` | a JSON object with the members below. Another member is an error |
--
-- | option | |
-- |---|---|
-- | `idempotency_key` | 1 to 255 bytes. The same submission with the same key within 24 hours returns the same job. Another `run_at` or `priority` is another submission. Keys of the HTTP API are compared differently: retry through the interface that you used first |
-- | `run_at` | a time within 366 days. The job reserves its quota now and asks for a slot then. A time in the past means now |
-- | `priority` | 1, the first, to 4: River's priority within the lane |
-- | `wake` | `true` notifies workers at your commit. Default: they find the job within 50 ms. All transactions of the server that notify commit one after the other, each after its flush and the synchronous standby |
--
-- | outcome | |
-- |---|---|
-- | `admitted` | the job has a slot. Workers find it within 50 ms of your commit |
-- | `parked` | accepted. The job waits for a slot or for `run_at` |
-- | `repeated` | `idempotency_key` created this job before |
-- | `folded` | the user has an unfinished job that equals this one by `unique_by`. Nothing was reserved |
-- | `over_quota` | the quota has no room. Nothing was written. `quota.windows` lists the full windows |
-- | `too_large` | used, reserved and requested would exceed 9223372036854775807. Nothing was written |
-- | `too_many_waiting` | the user has `max_waiting` jobs that wait for a slot, their time or a retry. Nothing was written |
-- | `key_reused` | `idempotency_key` belongs to another submission. Nothing was written |
--
-- Errors: 22023 for invalid arguments. 22003 for a number in a `unique_by` member that no double can hold (1e400).
-- 25000 for another isolation level than READ COMMITTED. P0001 when the user's plan has no limits for the service's
-- meter. A `unique_by` member may be nested 100 levels deep.
--
-- Cost: some ten lookups by key and five writes. It locks the user's account for the service's meter until the
-- transaction ends, so the user's other submissions and settlements wait.
--
-- Callers: other languages, as role weir_submitter. Rust decides the same in ledger/src/reservation/decide.rs and
-- policy/src/admission.rs, for groups; native/tests/suite/differential.rs compares the two. The states in which a
-- unique key counts are LIVE_STATES of ledger/src/unique_key.rs.
CREATE OR REPLACE FUNCTION weir_submit(subject text, service text, args jsonb, amount bigint DEFAULT NULL, options jsonb DEFAULT '{}',
                            OUT outcome text, OUT job_id bigint, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
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
    this_holder CONSTANT uuid := weir_holder(weir_submit.subject);
    is_uuid CONSTANT boolean := uuid_of_subject(weir_submit.subject) IS NOT NULL;
    want record;
    made weir_services;
    account record;
    earlier record;
    added bigint;
    hash bytea;
    key bytea;
    admits boolean;
    room record;
    lane_queue text;
BEGIN
    PERFORM require_read_committed('weir_submit');
    SELECT * INTO want FROM submit_options(weir_submit.options);
    SELECT * INTO made FROM weir_services s WHERE s.name = weir_submit.service;
    IF NOT FOUND THEN
        PERFORM raise_no_service(weir_submit.service);
    END IF;
    IF jsonb_typeof(args) IS DISTINCT FROM 'object' OR octet_length(args::text) > 262144 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the arguments must be a JSON object of at most 256 KiB';
    END IF;
    -- As in a token of the same user.
    args := args || jsonb_build_object(
        'user_id', CASE WHEN is_uuid THEN this_holder::text ELSE weir_submit.subject END);
    added := amount_of(made, args, weir_submit.amount);
    key := unique_key_of(this_holder, made.kind, args, made.unique_by);

    PERFORM lock_account(this_holder, made.event_type, CASE WHEN NOT is_uuid THEN weir_submit.subject END);
    SELECT h.slots_in_use, h.parked, clock.at, a.*,
           slots_in_force(h.user_id, a.tier, coalesce(a.slots, raise_no_limits(made.event_type)), a.own_slots) AS slots_now
    INTO account
    FROM (SELECT * FROM holders k WHERE k.holder = this_holder AND k.event_type = made.event_type
          ORDER BY k.generation DESC LIMIT 1) h
    CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
    LEFT JOIN LATERAL account_of(h.user_id, h.event_type, h.has_grants, clock.at) a ON true;
    quota := quota_json(account.used, account.reserved, account.monthly_limit, account.period_end, account.from_grants,
                        account.granted, account.monthly_ceiling);
    IF want.idempotency_key IS NOT NULL THEN
        hash := sha256(convert_to(made.name, 'UTF8') || '\x00' || convert_to(args::text, 'UTF8')
                       || convert_to(concat_ws('/', coalesce(weir_submit.amount::text, ''), want.priority,
                                               extract(epoch FROM want.asked_for)), 'UTF8'));
        SELECT s.job_id, s.request_hash INTO earlier
        FROM submissions s
        WHERE s.holder = this_holder AND s.idempotency_key = want.idempotency_key
          AND s.created_at > now() - key_lifetime();
        IF FOUND AND earlier.request_hash = hash THEN
            outcome := 'repeated';
            job_id := earlier.job_id;
            RETURN;
        ELSIF FOUND THEN
            outcome := 'key_reused';
            quota := NULL;
            RETURN;
        END IF;
        -- Keeps a key that another transaction has written since the look-up.
        UPDATE submissions s SET idempotency_key = NULL
        WHERE s.holder = this_holder AND s.idempotency_key = want.idempotency_key
          AND s.created_at <= now() - key_lifetime();
    END IF;
    IF key IS NOT NULL THEN
        SELECT j.id INTO job_id
        FROM river_job j
        WHERE j.unique_key = key AND j.unique_key IS NOT NULL AND j.unique_states IS NOT NULL
          AND river_job_state_in_bitmask(j.unique_states, j.state);
        IF FOUND THEN
            outcome := 'folded';
            RETURN;
        END IF;
    END IF;

    SELECT * INTO room
    FROM room_for(added, account.spans, account.limits, account.ceilings, account.used_in, account.reserved_in, account.ends,
                  account.from_grants, account.granted);
    outcome := submission_outcome(this_holder, made.event_type, want.run_at IS NOT NULL, account.slots_in_use, account.slots_now,
                                  account.parked, account.attributes, room.full_windows, room.is_too_large);
    IF outcome = 'over_quota' THEN
        quota := quota || jsonb_build_object('windows', room.full_windows);
    END IF;
    IF outcome NOT IN ('admitted', 'parked') THEN
        RETURN;
    END IF;
    admits := outcome = 'admitted';
    lane_queue := made.name || '_' || coalesce(account.lane, 'default');
    job_id := nextval('river_job_id_seq');
    INSERT INTO submissions (job_id, holder, user_id, event_type, reserved_amount, idempotency_key, request_hash)
    VALUES (weir_submit.job_id, this_holder, this_holder, made.event_type, added, want.idempotency_key, hash)
    ON CONFLICT (holder, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        -- Another submission took the key after the look-up. It holds another meter's lock, so it ran at the same time.
        outcome := 'key_reused';
        job_id := NULL;
        quota := NULL;
        RETURN;
    END IF;
    quota := quota_json(account.used, account.reserved + added, account.monthly_limit, account.period_end,
                        account.from_grants + room.drawn, account.granted - room.drawn, account.monthly_ceiling);
    PERFORM set_config('weir.counters', 'kept', true);
    INSERT INTO river_job (id, args, kind, max_attempts, metadata, priority, queue, state, scheduled_at, tags,
                           unique_key, unique_states)
    VALUES (weir_submit.job_id, args, made.kind, made.max_attempts, '{}', want.priority, lane_queue,
            (CASE WHEN admits THEN 'available' ELSE 'pending' END)::river_job_state,
            coalesce(want.run_at, clock_timestamp()), '{}', key, CASE WHEN key IS NOT NULL THEN B'11110001' END);
    INSERT INTO quota_reservations (user_id, event_type, reserved_amount, job_id, expires_at, holder, period_start,
                                    windows, created_at, admitted_at, parked_at, due_at, from_grants, overage)
    SELECT this_holder, made.event_type, added, weir_submit.job_id, now() + s.reservation_ttl, this_holder,
           account.period_start, account.counted, account.at,
           CASE WHEN admits THEN clock_timestamp() END,
           CASE WHEN NOT admits AND want.run_at IS NULL THEN clock_timestamp() END,
           want.run_at, room.drawn, room.overage
    FROM weir_settings s;
    UPDATE holders h
    SET slots_in_use = h.slots_in_use + admits::int,
        parked = h.parked + (NOT admits)::int,
        parked_from = least(h.parked_from, weir_submit.job_id),
        granted_slots = CASE WHEN admits THEN account.slots_now ELSE h.granted_slots END,
        changes = h.changes + 1
    WHERE want.run_at IS NULL
      AND h.ctid = (SELECT k.ctid FROM holders k WHERE k.holder = this_holder AND k.event_type = made.event_type
                    ORDER BY k.generation DESC LIMIT 1);
    IF added > 0 THEN
        PERFORM reserve_in_windows(this_holder, made.event_type, added, account.spans, account.starts, account.limits,
                                   account.ceilings, account.used_in);
    END IF;
    IF room.drawn > 0 THEN
        PERFORM draw_grants(this_holder, made.event_type, job_id, room.drawn, account.at, account.period_start);
    END IF;
    IF admits AND want.wake THEN
        PERFORM wake_queue(lane_queue);
    END IF;
    PERFORM set_config('weir.counters', counters, true);
END
$$;

COMMENT ON FUNCTION weir_submit IS
    'submits a job in the caller''s transaction; outcome: admitted, parked, repeated, folded, over_quota, too_large, too_many_waiting, key_reused';
