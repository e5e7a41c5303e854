-- Decides on submissions, in order, and writes the accepted ones. The only body of this rule: each decision includes the
-- ones before it, and a refusal is a row. policy/src/admission.rs specifies it for tests.
--
-- | parameter | |
-- |---|---|
-- | `locking` | `wait` waits for the accounts' locks. `skip`: if another transaction has locked one of them, writes nothing and returns a row `locked` for each of its submissions. `none` is a dry run: it takes no locks and writes nothing |
-- | `all_or_none` | if a submission is refused, writes nothing. Its row is the last one. A row `over_quota` has the quota before all submissions, and the windows without room for the total of its account |
--
-- The outcomes are those of weir_submit, and `scheduled` for a parked job with a start time. A row has the account's
-- windows, the month first, as they were before all submissions. `added` and `drawn` are the amounts that this
-- submission and the ones before it reserved, and drew on grants. `full_spans` are the windows without room.
-- `is_lendable`: idle workers of the queue may be lent to the parked job. If another
-- transaction has just used the idempotency key of a single submission, a second row has the decision.
--
-- The accounts are written before river_job, because a trigger of another program there may submit jobs itself.
-- Errors: 40001 when another transaction has just used one of several idempotency keys. P0001 when a plan has no limits for a meter.
-- Cost: for each account one lock and some eight look-ups; for each accepted job two inserts; one update an account
-- and a window other than the month.
-- Callers: submit_group, check_submission, retry_job; ledger/src/reservation/transaction.rs.
CREATE OR REPLACE FUNCTION submit_many(submissions submission[], locking text, all_or_none boolean)
RETURNS TABLE (member int, outcome text, job_id bigint, queue text, created_at timestamptz, reserved bigint,
               added bigint, drawn bigint, full_spans text[], tier text, max_waiting int, at timestamptz, spans text[],
               starts timestamptz[], ends timestamptz[], limits bigint[], ceilings bigint[], used_in bigint[],
               reserved_in bigint[], from_grants bigint, granted bigint, is_lendable boolean)
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
    n CONSTANT int := cardinality(submissions);
    of_holders uuid[];
    meters usage_event_type[];
    users uuid[];
    places tid[];
    slots int[];
    parked_jobs int[];
    months timestamptz[];
    has_grants boolean;
    are_locked boolean;
    accounts_exist boolean := false;
    accounts refcursor;
    -- The account.
    place tid;
    month timestamptz;
    slots_in_use int;
    parked int;
    lane text;
    counted smallint;
    room numeric;
    capacity numeric;
    plan_left numeric;
    burst int;
    scheduled int;
    slot_limit bigint;
    s record;
    waits boolean;
    total numeric;
    excess numeric;
    draw bigint;
    twin int;
    has_keys boolean := false;
    has_old_keys boolean := false;
    n_folds int := 0;
    has_draws boolean := false;
    accepted int := 0;
    written int;
    momentary bigint[];
    is_late boolean;
    -- The account's new jobs so far.
    n_slots int;
    n_parked int;
    n_scheduled int;
    first_parked bigint;
    -- By submission.
    ids bigint[] := array_fill(NULL::bigint, ARRAY[n]);
    folds bigint[] := array_fill(NULL::bigint, ARRAY[n]);
    queues text[] := array_fill(NULL::text, ARRAY[n]);
    amounts bigint[] := array_fill(NULL::bigint, ARRAY[n]);
    draws bigint[] := array_fill(NULL::bigint, ARRAY[n]);
    overages bigint[] := array_fill(NULL::bigint, ARRAY[n]);
    outcomes text[] := array_fill(NULL::text, ARRAY[n]);
    periods timestamptz[] := array_fill(NULL::timestamptz, ARRAY[n]);
    windows smallint[] := array_fill(NULL::smallint, ARRAY[n]);
    moments timestamptz[] := array_fill(NULL::timestamptz, ARRAY[n]);
    -- The keys of accepted and folded submissions.
    seen_keys text[] := '{}';
    seen_hashes bytea[] := '{}';
    seen_jobs bigint[] := '{}';
    seen_unique bytea[] := '{}';
    unique_jobs bigint[] := '{}';
    -- By changed account, and by changed window.
    h_places tid[] := '{}';
    h_slots int[] := '{}';
    h_parked int[] := '{}';
    h_limits int[] := '{}';
    h_first bigint[] := '{}';
    h_holders uuid[] := '{}';
    h_meters text[] := '{}';
    h_starts timestamptz[] := '{}';
    h_amounts bigint[] := '{}';
    h_accepted bigint[] := '{}';
    opens_months boolean := false;
    -- The accounts that idle workers may be lent to.
    l_holders uuid[];
    l_meters text[];
    w_users uuid[] := '{}';
    w_meters text[] := '{}';
    w_spans text[] := '{}';
    w_starts timestamptz[] := '{}';
    w_amounts bigint[] := '{}';
    w_used bigint[] := '{}';
    w_accepted bigint[] := '{}';
BEGIN
    LOOP
        -- The order and the limit find the live version of a row (see ledger/schema/tables/holders.sql).
        IF locking = 'wait' THEN
            SELECT array_agg(w.holder), array_agg(w.meter), array_agg(w.user_id), array_agg(h.place),
                   array_agg(h.slots_in_use), array_agg(h.parked), array_agg(h.period_start), bool_or(h.has_grants),
                   count(h.place) = count(*)
            INTO of_holders, meters, users, places, slots, parked_jobs, months, has_grants, are_locked
            FROM (SELECT DISTINCT s.holder, s.meter, s.user_id FROM unnest(submissions) s ORDER BY 1, 2) w
            LEFT JOIN LATERAL (
                SELECT k.ctid AS place, k.* FROM holders k WHERE k.holder = w.holder AND k.event_type = w.meter
                ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE
            ) h ON true;
        ELSIF locking = 'skip' THEN
            SELECT array_agg(w.holder), array_agg(w.meter), array_agg(w.user_id), array_agg(h.place),
                   array_agg(h.slots_in_use), array_agg(h.parked), array_agg(h.period_start), bool_or(h.has_grants),
                   count(h.place) = count(*)
            INTO of_holders, meters, users, places, slots, parked_jobs, months, has_grants, are_locked
            FROM (SELECT DISTINCT s.holder, s.meter, s.user_id FROM unnest(submissions) s ORDER BY 1, 2) w
            LEFT JOIN LATERAL (
                SELECT k.ctid AS place, k.* FROM holders k WHERE k.holder = w.holder AND k.event_type = w.meter
                ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
            ) h ON true;
        ELSE
            SELECT array_agg(w.holder), array_agg(w.meter), array_agg(w.user_id), array_agg(h.place),
                   array_agg(h.slots_in_use), array_agg(h.parked), array_agg(h.period_start), bool_or(h.has_grants),
                   count(h.place) = count(*)
            INTO of_holders, meters, users, places, slots, parked_jobs, months, has_grants, are_locked
            FROM (SELECT DISTINCT s.holder, s.meter, s.user_id FROM unnest(submissions) s ORDER BY 1, 2) w
            LEFT JOIN LATERAL (
                SELECT k.ctid AS place, k.* FROM holders k WHERE k.holder = w.holder AND k.event_type = w.meter
                ORDER BY k.generation DESC LIMIT 1
            ) h ON true;
            -- The account may not exist.
            has_grants := has_grants OR NOT are_locked;
            EXIT;
        END IF;
        EXIT WHEN are_locked;
        IF accounts_exist THEN
            RETURN QUERY
            SELECT u.ordinality::int, 'locked', NULL::bigint, NULL::text, NULL::timestamptz, NULL::bigint, NULL::bigint,
                   NULL::bigint, NULL::text[], NULL::text, NULL::int, NULL::timestamptz, NULL::text[],
                   NULL::timestamptz[], NULL::timestamptz[], NULL::bigint[], NULL::bigint[], NULL::bigint[],
                   NULL::bigint[], NULL::bigint, NULL::bigint, NULL::boolean
            FROM unnest(submissions) WITH ORDINALITY u
            WHERE NOT EXISTS (SELECT FROM lock_accounts(ARRAY[u.holder], ARRAY[u.meter], true));
            RETURN;
        END IF;
        -- Without effect on users and accounts that exist.
        PERFORM create_users(array_agg(s.user_id), array_agg(s.subject)) FROM unnest(submissions) s;
        INSERT INTO holders (holder, event_type, user_id)
        SELECT DISTINCT s.holder, s.meter, s.user_id FROM unnest(submissions) s ORDER BY 1, 2
        ON CONFLICT (holder, event_type) DO NOTHING;
        accounts_exist := true;
    END LOOP;

    -- A separate statement, which reads under the locks. Without grants and shorter windows, its plan is half as large.
    at := clock_timestamp();
    IF has_grants OR EXISTS (SELECT FROM plan_limits l WHERE l.event_type = ANY (meters) AND l.counted <> 0) THEN
        OPEN accounts FOR
            SELECT * FROM accounts_of(of_holders, meters, users, places, slots, parked_jobs, months, true, NULL, at);
    ELSE
        OPEN accounts FOR
            SELECT * FROM accounts_of(of_holders, meters, users, places, slots, parked_jobs, months, false, 0::smallint, at);
    END IF;
    FOR s IN
        SELECT u.ordinality::int AS member, u.holder, u.user_id, u.service, u.meter, u.amount, u.run_at,
               u.idempotency_key, u.request_hash, u.unique_key,
               CASE WHEN o.is_valid THEN o.request_hash ELSE e.request_hash END AS earlier_hash,
               CASE WHEN o.is_valid THEN o.job_id ELSE e.job_id END AS earlier_job, o.is_valid, l.id AS live_job,
               row_number() OVER account = 1 AS is_first, lead(u.ordinality) OVER account IS NULL AS is_last
        FROM unnest(submissions) WITH ORDINALITY u
        LEFT JOIN LATERAL (
            SELECT o.request_hash, o.job_id, o.submitted_at > now() - key_lifetime() AS is_valid FROM weir_jobs o
            WHERE o.holder = u.holder AND o.idempotency_key = u.idempotency_key
        ) o ON true
        LEFT JOIN LATERAL (
            SELECT f.request_hash, f.job_id FROM folded_submissions f
            WHERE f.holder = u.holder AND f.idempotency_key = u.idempotency_key AND f.created_at > now() - key_lifetime()
        ) e ON true
        LEFT JOIN LATERAL (
            SELECT j.id FROM river_job j
            WHERE j.unique_key = u.unique_key AND j.unique_key IS NOT NULL AND j.unique_states IS NOT NULL
              AND river_job_state_in_bitmask(j.unique_states, j.state)
            OFFSET 0
        ) l ON u.unique_key IS NOT NULL
        WINDOW account AS (PARTITION BY u.holder, u.meter ORDER BY u.ordinality)
        ORDER BY u.holder, u.meter, u.ordinality
    LOOP
        IF s.is_first THEN
            FETCH accounts INTO place, slots_in_use, parked, month, tier, lane, counted, spans, starts, ends, limits, ceilings,
                                used_in, reserved_in, from_grants, granted, room, capacity, plan_left, burst,
                                max_waiting, scheduled, slot_limit;
            added := 0;
            drawn := 0;
            n_slots := 0;
            n_parked := 0;
            n_scheduled := 0;
            first_parked := NULL;
        END IF;
        member := s.member;
        job_id := NULL;
        queue := NULL;
        created_at := NULL;
        full_spans := NULL;
        is_lendable := false;
        -- Without a user there is no plan and no quota, so the job holds only a slot.
        reserved := CASE WHEN s.user_id IS NULL THEN 0 ELSE s.amount END;
        waits := s.run_at IS NOT NULL OR parked + n_parked > 0 OR slots_in_use + n_slots >= slot_limit;
        IF s.idempotency_key IS NOT NULL AND s.earlier_job IS NULL THEN
            has_keys := true;
            has_old_keys := has_old_keys OR s.is_valid IS NOT NULL;
            twin := array_position(seen_keys, s.holder || '/' || s.idempotency_key);
            IF twin IS NOT NULL THEN
                s.earlier_job := seen_jobs[twin];
                s.earlier_hash := seen_hashes[twin];
            END IF;
        END IF;
        IF s.unique_key IS NOT NULL AND s.live_job IS NULL THEN
            s.live_job := unique_jobs[array_position(seen_unique, s.unique_key)];
        END IF;

        IF s.earlier_job IS NOT NULL AND s.earlier_hash = s.request_hash THEN
            outcome := 'repeated';
            job_id := s.earlier_job;
        ELSIF s.earlier_job IS NOT NULL THEN
            outcome := 'key_reused';
        ELSIF s.live_job IS NOT NULL THEN
            outcome := 'folded';
            job_id := s.live_job;
            folds[member] := job_id;
            n_folds := n_folds + (s.idempotency_key IS NOT NULL)::int;
        ELSIF reserved > 0 AND reserved > room - added THEN
            outcome := 'over_quota';
            IF all_or_none THEN
                added := 0;
                drawn := 0;
                SELECT sum(u.amount) INTO total FROM unnest(submissions) u
                WHERE u.holder = s.holder AND u.meter = s.meter;
            ELSE
                total := reserved;
            END IF;
            SELECT array_agg(m.span ORDER BY m.n) INTO full_spans
            FROM unnest(spans, limits, ceilings, used_in, reserved_in) WITH ORDINALITY
                AS m (span, most, ceiling, used, reserved, n)
            CROSS JOIN LATERAL (
                SELECT CASE m.n WHEN 1 THEN from_grants + drawn ELSE 0 END AS paid,
                       CASE m.n WHEN 1 THEN granted - drawn ELSE 0 END AS granted
            ) g
            WHERE total > room_in(m.most, m.ceiling, m.used, m.reserved + added, g.paid, g.granted);
        ELSIF reserved > capacity - added THEN
            outcome := 'too_large';
        ELSIF waits AND parked + n_parked + scheduled + n_scheduled >= max_waiting THEN
            outcome := 'too_many_waiting';
        ELSE
            accepted := accepted + 1;
            job_id := CASE WHEN locking <> 'none' THEN nextval('river_job_id_seq') END;
            queue := s.service || '_' || coalesce(lane, 'default');
            created_at := now();
            IF s.run_at IS NOT NULL THEN
                outcome := 'scheduled';
                n_scheduled := n_scheduled + 1;
            ELSIF waits THEN
                outcome := 'parked';
                is_lendable := coalesce(slots_in_use + n_slots + parked + n_parked < burst, false);
                n_parked := n_parked + 1;
                first_parked := coalesce(first_parked, job_id);
            ELSE
                outcome := 'admitted';
                n_slots := n_slots + 1;
            END IF;
            -- The part beyond the plan's month: from grants first, and the rest is overage.
            excess := greatest(reserved - greatest(plan_left - added + drawn, 0), 0);
            draw := coalesce(least(excess, granted - drawn), 0);
            added := added + reserved;
            drawn := drawn + draw;
            has_draws := has_draws OR draw > 0;
            ids[member] := job_id;
            queues[member] := queue;
            amounts[member] := reserved;
            draws[member] := draw;
            overages[member] := coalesce(excess, 0) - draw;
            outcomes[member] := outcome;
            periods[member] := starts[1];
            windows[member] := coalesce(counted, 0);
            moments[member] := at;
            IF s.unique_key IS NOT NULL THEN
                seen_unique := seen_unique || s.unique_key;
                unique_jobs := unique_jobs || job_id;
            END IF;
        END IF;
        IF s.idempotency_key IS NOT NULL AND (ids[member] IS NOT NULL OR folds[member] IS NOT NULL) THEN
            seen_keys := seen_keys || (s.holder || '/' || s.idempotency_key);
            seen_hashes := seen_hashes || s.request_hash;
            seen_jobs := seen_jobs || job_id;
        END IF;
        RETURN NEXT;
        IF all_or_none AND outcome IN ('key_reused', 'over_quota', 'too_large', 'too_many_waiting') THEN
            RETURN;
        END IF;
        IF s.is_last AND (n_slots + n_parked > 0 OR added > 0) THEN
            h_places := h_places || place;
            h_holders := h_holders || s.holder;
            h_meters := h_meters || s.meter::text;
            h_starts := h_starts || CASE WHEN added > 0 THEN starts[1] END;
            h_amounts := h_amounts || added;
            h_accepted := h_accepted || coalesce(max_accepted(limits[1], ceilings[1]), 9223372036854775807);
            opens_months := opens_months OR added > 0 AND month IS DISTINCT FROM starts[1];
            h_slots := h_slots || n_slots;
            h_parked := h_parked || n_parked;
            h_limits := h_limits || slot_limit::int;
            h_first := h_first || first_parked;
        END IF;
        IF s.is_last AND n_parked > 0 AND burst > slot_limit THEN
            l_holders := l_holders || s.holder;
            l_meters := l_meters || s.meter;
        END IF;
        IF s.is_last AND added > 0 THEN
            FOR i IN 2 .. cardinality(spans) LOOP
                w_users := w_users || s.holder;
                w_meters := w_meters || s.meter;
                w_spans := w_spans || spans[i];
                w_starts := w_starts || starts[i];
                w_amounts := w_amounts || added;
                w_used := w_used || used_in[i];
                w_accepted := w_accepted || coalesce(max_accepted(limits[i], ceilings[i]), 9223372036854775807);
            END LOOP;
        END IF;
    END LOOP;
    CLOSE accounts;
    IF accepted = 0 AND n_folds = 0 OR locking = 'none' THEN
        RETURN;
    END IF;

    IF has_old_keys THEN
        UPDATE weir_jobs o SET idempotency_key = NULL
        FROM unnest(submissions) u
        WHERE o.holder = u.holder AND o.idempotency_key = u.idempotency_key AND o.submitted_at <= now() - key_lifetime();
    END IF;
    -- A folded submission with a key has a row for a moment. Another transaction with the key waits for the end of this one.
    WITH new_rows AS (
        INSERT INTO weir_jobs (job_id, holder, user_id, event_type, reserved_amount, idempotency_key, request_hash,
                               submitted_at, expires_at, period_start, windows, reserved_at, admitted_at, parked_at,
                               due_at, from_grants, overage, start_by)
        SELECT coalesce(u.id, nextval('river_job_id_seq')), u.holder, u.user_id, u.meter, coalesce(u.reserved, 0),
               u.idempotency_key, u.request_hash, now(), now() + t.reservation_ttl, u.period, coalesce(u.windows, 0),
               coalesce(u.at, now()),
               CASE WHEN u.outcome = 'admitted' THEN clock_timestamp() END,
               CASE WHEN u.outcome = 'parked' THEN clock_timestamp() END,
               u.run_at, coalesce(u.draw, 0), coalesce(u.overage, 0),
               coalesce(u.run_at, now()) + make_interval(secs => (u.metadata ->> 'weir:expires_in')::float8)
        FROM unnest(submissions, ids, amounts, folds, periods, windows, moments, outcomes, draws, overages)
            AS u (holder, user_id, subject, service, meter, kind, max_attempts, args, metadata, priority, amount, run_at,
                  idempotency_key, request_hash, unique_key, tags, id, reserved, fold, period, windows, at, outcome, draw,
                  overage)
        CROSS JOIN weir_settings t
        WHERE u.id IS NOT NULL OR u.fold IS NOT NULL AND u.idempotency_key IS NOT NULL
        ON CONFLICT (holder, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING job_id
    )
    SELECT count(*), array_agg(w.job_id) FILTER (WHERE n_folds > 0 AND w.job_id <> ALL (array_remove(ids, NULL)))
    INTO written, momentary
    FROM new_rows w;
    is_late := written < accepted + n_folds;
    IF n_folds > 0 AND NOT is_late THEN
        DELETE FROM weir_jobs o WHERE o.job_id = ANY (momentary);
        INSERT INTO folded_submissions AS f (holder, idempotency_key, request_hash, job_id)
        SELECT u.holder, u.idempotency_key, u.request_hash, u.fold
        FROM unnest(submissions, folds)
            AS u (holder, user_id, subject, service, meter, kind, max_attempts, args, metadata, priority, amount, run_at,
                  idempotency_key, request_hash, unique_key, tags, fold)
        WHERE u.fold IS NOT NULL AND u.idempotency_key IS NOT NULL
        ON CONFLICT (holder, idempotency_key) DO UPDATE
        SET request_hash = excluded.request_hash, job_id = excluded.job_id, created_at = excluded.created_at
        WHERE f.created_at <= now() - key_lifetime();
        GET DIAGNOSTICS written = ROW_COUNT;
        is_late := written < n_folds;
    END IF;
    IF has_keys AND accepted > 0 AND NOT is_late THEN
        is_late := EXISTS (
            SELECT FROM unnest(submissions, ids)
                AS u (holder, user_id, subject, service, meter, kind, max_attempts, args, metadata, priority, amount, run_at,
                      idempotency_key, request_hash, unique_key, tags, id)
            JOIN folded_submissions f ON f.holder = u.holder AND f.idempotency_key = u.idempotency_key
            WHERE u.id IS NOT NULL AND f.created_at > now() - key_lifetime());
    END IF;
    IF is_late THEN
        -- The other transaction held the lock of another of the holder's meters, so it ran at the same time.
        IF n = 1 AND locking = 'wait' THEN
            DELETE FROM weir_jobs o WHERE o.job_id = ids[1];
            RETURN QUERY SELECT * FROM submit_many(submissions, locking, all_or_none);
            RETURN;
        END IF;
        RAISE serialization_failure USING
            MESSAGE = 'another transaction has just used one of the idempotency keys', HINT = 'retry the transaction';
    END IF;
    IF accepted = 0 THEN
        RETURN;
    END IF;
    IF opens_months THEN
        PERFORM open_months(array_agg(w.holder), array_agg(w.meter), array_agg(w.start))
        FROM unnest(h_holders, h_meters, h_starts) AS w (holder, meter, start)
        WHERE w.start IS NOT NULL;
        SELECT array_agg((SELECT k.ctid FROM holders k WHERE k.holder = w.holder AND k.event_type = w.meter
                          ORDER BY k.generation DESC LIMIT 1) ORDER BY w.n)
        INTO h_places
        FROM unnest(h_holders, h_meters) WITH ORDINALITY AS w (holder, meter, n);
    END IF;
    IF cardinality(h_places) > 0 THEN
        UPDATE holders h
        SET slots_in_use = h.slots_in_use + d.slots,
            parked = h.parked + d.parked,
            granted_slots = CASE WHEN d.slots > 0 THEN d.slot_limit ELSE h.granted_slots END,
            parked_from = least(h.parked_from, d.first_parked),
            reserved = h.reserved + d.amount,
            granted_limit = CASE WHEN d.amount > 0
                                 -- Usage above a limit that was lowered later stays allowed.
                                 THEN greatest(d.accepted, h.used + h.reserved - h.from_grants)
                                 ELSE h.granted_limit END,
            changes = h.changes + 1
        FROM unnest(h_places, h_slots, h_parked, h_limits, h_first, h_amounts, h_accepted)
            AS d (place, slots, parked, slot_limit, first_parked, amount, accepted)
        -- The row stays at its place, because it is locked.
        WHERE h.ctid = d.place;
    END IF;
    IF l_holders IS NOT NULL THEN
        INSERT INTO waiting_accounts (holder, event_type) SELECT * FROM unnest(l_holders, l_meters)
        ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(w_users) > 0 THEN
        UPDATE window_balances b
        SET reserved = b.reserved + d.amount,
            granted_limit = greatest(d.accepted, b.used + b.reserved - b.from_grants),
            changes = b.changes + 1
        FROM (
            SELECT u.amount, u.accepted,
                   -- A text has the meter's collation here, which the index does not have for spans.
                   (SELECT k.ctid FROM window_balances k
                    WHERE k.user_id = u.holder AND k.event_type = u.meter AND k.span = u.span COLLATE "default"
                      AND k.period_start = u.start
                    ORDER BY k.generation DESC LIMIT 1) AS place
            FROM unnest(w_users, w_meters, w_spans, w_starts, w_amounts, w_accepted)
                AS u (holder, meter, span, start, amount, accepted)
        ) d
        WHERE b.ctid = d.place;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality(w_users) THEN
            INSERT INTO window_balances (user_id, event_type, span, period_start, used, reserved, granted_limit)
            SELECT * FROM unnest(w_users, w_meters, w_spans, w_starts, w_used, w_amounts, w_accepted)
            ON CONFLICT DO NOTHING;
        END IF;
    END IF;
    IF has_draws THEN
        PERFORM draw_grants(u.user_id, u.meter, u.id, u.draw, u.at, u.period)
        FROM unnest(submissions, ids, draws, moments, periods)
            AS u (holder, user_id, subject, service, meter, kind, max_attempts, args, metadata, priority, amount, run_at,
                  idempotency_key, request_hash, unique_key, tags, id, draw, at, period)
        WHERE u.draw > 0;
    END IF;
    -- Triggers of other programs run from here on.
    -- A key is unique in all states but completed, discarded and cancelled: a finished job runs again when it is
    -- submitted again.
    INSERT INTO river_job (id, args, kind, max_attempts, metadata, priority, queue, state, scheduled_at, tags,
                           unique_key, unique_states)
    SELECT u.id, u.args, u.kind, u.max_attempts, u.metadata, u.priority, u.queue,
           (CASE WHEN u.outcome = 'admitted' THEN 'available' ELSE 'pending' END)::river_job_state,
           coalesce(u.run_at, now()), coalesce(u.tags, '{}'), u.unique_key, CASE WHEN u.unique_key IS NOT NULL THEN B'11110001' END
    FROM unnest(submissions, ids, queues, outcomes)
        AS u (holder, user_id, subject, service, meter, kind, max_attempts, args, metadata, priority, amount, run_at,
              idempotency_key, request_hash, unique_key, tags, id, queue, outcome)
    WHERE u.id IS NOT NULL;
END
$$;
