-- A holder's row that somebody deleted is made again by whoever needs it next. It must not forget that its user has grants,
-- which nobody would look for any more.
CREATE FUNCTION remember_grants() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Of one that is used up, nothing is left to be looked for; and the index has none of them.
    NEW.has_grants := EXISTS (
        SELECT FROM grants g WHERE g.user_id = NEW.user_id AND g.event_type = NEW.event_type AND g.used < g.amount);
    RETURN NEW;
END
$$;
CREATE TRIGGER remember_grants BEFORE INSERT ON holders FOR EACH ROW
    WHEN (NEW.user_id IS NOT NULL AND NOT NEW.has_grants) EXECUTE FUNCTION remember_grants();
UPDATE holders h SET has_grants = true
FROM (SELECT DISTINCT user_id, event_type FROM grants WHERE used < amount) g
WHERE h.user_id = g.user_id AND h.event_type = g.event_type AND NOT h.has_grants;

-- The oldest jobs of a holder that have room, and what they are given: the lane of its plan, and the slots in force. The
-- caller holds the holder's lock.
CREATE OR REPLACE FUNCTION next_in_line(of_holder uuid, meter text, of_user uuid, waiting int, in_use int,
                             OUT jobs bigint[], OUT lane text, OUT slots int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    plan record;
BEGIN
    jobs := '{}';
    IF waiting <= 0 THEN
        RETURN;
    END IF;
    SELECT * INTO plan FROM plan_of(of_user, meter);
    -- Whoever is no user has no plan (ADR-16), and is counted as the default one has it.
    lane := CASE WHEN of_user IS NULL THEN 'default' ELSE coalesce(plan.lane, 'default') END;
    slots := slots_in_force(of_user, plan.tier, plan.slots, plan.own_slots);
    -- What is left is promoted by the next one: when limits are lifted, all that waits becomes free at once.
    jobs := ARRAY(
        SELECT r.job_id
        FROM quota_reservations r
        WHERE r.holder = of_holder AND r.event_type = meter AND r.parked_at IS NOT NULL
          AND (SELECT j.state IN ('pending', 'scheduled') FROM river_job j WHERE j.id = r.job_id)
        ORDER BY r.job_id
        LIMIT least(1000, greatest(least(waiting, next_in_line.slots::bigint - in_use), 0))
    );
END
$$;

CREATE OR REPLACE FUNCTION weir_submit(subject text, service text, args jsonb, amount bigint DEFAULT NULL, options jsonb DEFAULT '{}',
                            OUT outcome text, OUT job_id bigint, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    books CONSTANT text := coalesce(current_setting('weir.books', true), '');
    this_holder CONSTANT uuid := weir_holder(weir_submit.subject);
    is_uuid CONSTANT boolean := uuid_of_subject(weir_submit.subject) IS NOT NULL;
    want record;
    made weir_services;
    account record;
    earlier record;
    live record;
    added bigint;
    hash bytea;
    key bytea;
    admits boolean;
    beyond bigint;
    drawn bigint;
    lane_queue text;
    without_room jsonb;
BEGIN
    PERFORM need_read_committed('weir_submit');
    SELECT * INTO want FROM submit_options(weir_submit.options);
    SELECT * INTO made FROM weir_services s WHERE s.name = weir_submit.service;
    IF NOT FOUND THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('there is no service %s', weir_submit.service),
            HINT = format('there are %s; `weir migrate` brings those of weir.toml here',
                          coalesce((SELECT string_agg(s.name, ', ' ORDER BY s.name) FROM weir_services s), 'none'));
    END IF;
    IF jsonb_typeof(args) IS DISTINCT FROM 'object' OR octet_length(args::text) > 262144 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the arguments must be a JSON object of at most 256 KiB';
    END IF;
    -- As the token of the same user would have it.
    args := args || jsonb_build_object(
        'user_id', CASE WHEN is_uuid THEN this_holder::text ELSE weir_submit.subject END);
    added := amount_of(made, args, weir_submit.amount);
    key := unique_key_of(made.kind, args, made.unique_by);

    PERFORM lock_account(this_holder, made.event_type, CASE WHEN NOT is_uuid THEN weir_submit.subject END);
    SELECT * INTO account FROM account_of(this_holder, made.event_type);
    quota := quota_json(account.used[1], account.reserved[1], account.limits[1], account.ends[1], account.from_grants,
                        account.granted, account.ceilings[1]);
    IF want.idempotency_key IS NOT NULL THEN
        hash := sha256(convert_to(made.name, 'UTF8') || '\x00' || convert_to(args::text, 'UTF8')
                       || convert_to(coalesce(weir_submit.amount::text, ''), 'UTF8'));
        SELECT s.job_id, s.request_hash INTO earlier
        FROM submissions s
        WHERE s.holder = this_holder AND s.idempotency_key = want.idempotency_key
          AND s.created_at > now() - interval '24 hours';
        IF FOUND AND earlier.request_hash = hash THEN
            outcome := 'repeated';
            job_id := earlier.job_id;
            RETURN;
        ELSIF FOUND THEN
            outcome := 'key_reused';
            quota := NULL;
            RETURN;
        END IF;
        -- Not one that was written since it was looked for.
        UPDATE submissions s SET idempotency_key = NULL
        WHERE s.holder = this_holder AND s.idempotency_key = want.idempotency_key
          AND s.created_at <= now() - interval '24 hours';
    END IF;
    IF key IS NOT NULL THEN
        SELECT j.id, s.holder INTO live
        FROM river_job j LEFT JOIN submissions s ON s.job_id = j.id
        WHERE j.unique_key = key AND j.unique_key IS NOT NULL AND j.unique_states IS NOT NULL
          AND river_job_state_in_bitmask(j.unique_states, j.state);
        IF FOUND AND live.holder = this_holder THEN
            outcome := 'folded';
            job_id := live.id;
            RETURN;
        ELSIF FOUND THEN
            -- Somebody else's, which this caller must not see.
            key := NULL;
        END IF;
    END IF;

    SELECT jsonb_agg(jsonb_build_object('window', w.span)
                     || quota_json(w.used, w.reserved, w.most, w.past, g.paid, g.granted, w.ceiling))
    INTO without_room
    FROM unnest(account.spans, account.limits, account.used, account.reserved, account.ends, account.ceilings)
        AS w (span, most, used, reserved, past, ceiling)
    CROSS JOIN LATERAL (
        SELECT CASE w.span WHEN 'month' THEN account.from_grants ELSE 0 END AS paid,
               CASE w.span WHEN 'month' THEN account.granted ELSE 0 END AS granted
    ) g
    WHERE w.most IS NOT NULL
      AND added > greatest(most_of(w.most, w.ceiling)::numeric - (w.used::numeric + w.reserved - g.paid), 0) + g.granted;
    IF without_room IS NOT NULL THEN
        outcome := 'over_quota';
        quota := quota || jsonb_build_object('windows', without_room);
        RETURN;
    END IF;

    admits := want.run_at IS NULL AND account.parked = 0 AND account.slots_in_use < account.slots;
    IF NOT admits AND account.max_waiting IS NOT NULL
       AND account.parked + scheduled_of(this_holder, made.event_type, account.max_waiting - account.parked)
           >= account.max_waiting THEN
        outcome := 'too_many_waiting';
        RETURN;
    END IF;
    outcome := CASE WHEN admits THEN 'admitted' ELSE 'parked' END;
    -- What the month has no room for, grants pay, and what they have not is overage.
    beyond := CASE WHEN account.limits[1] IS NULL THEN 0 ELSE greatest(added - greatest(
        account.limits[1]::numeric - (account.used[1]::numeric + account.reserved[1] - account.from_grants), 0), 0) END;
    drawn := least(beyond, account.granted);
    lane_queue := made.name || '_' || coalesce(account.lane, 'default');
    job_id := nextval('river_job_id_seq');
    INSERT INTO submissions (job_id, holder, user_id, event_type, reserved_amount, idempotency_key, request_hash)
    VALUES (weir_submit.job_id, this_holder, this_holder, made.event_type, added, want.idempotency_key, hash)
    ON CONFLICT (holder, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        -- Taken since it was looked for, by a submission that another meter's lock lets go on beside this one.
        outcome := 'key_reused';
        job_id := NULL;
        quota := NULL;
        RETURN;
    END IF;
    quota := quota_json(account.used[1], account.reserved[1] + added, account.limits[1], account.ends[1],
                        account.from_grants + drawn, account.granted - drawn, account.ceilings[1]);
    -- The counters are booked here and not by the triggers.
    PERFORM set_config('weir.books', 'kept', true);
    LOOP
        INSERT INTO river_job (id, args, kind, max_attempts, metadata, priority, queue, state, scheduled_at, tags,
                               unique_key, unique_states)
        VALUES (weir_submit.job_id, args, made.kind, made.max_attempts, '{}', want.priority, lane_queue,
                (CASE WHEN admits THEN 'available' ELSE 'pending' END)::river_job_state,
                coalesce(want.run_at, clock_timestamp()), '{}', key, CASE WHEN key IS NOT NULL THEN B'11110001' END)
        ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND unique_states IS NOT NULL
            AND river_job_state_in_bitmask(unique_states, state) DO NOTHING;
        EXIT WHEN FOUND;
        -- Another River client was faster, with a job that is nobody's here.
        key := NULL;
    END LOOP;
    INSERT INTO quota_reservations (user_id, event_type, reserved_amount, job_id, expires_at, holder, period_start,
                                    windows, created_at, admitted_at, parked_at, due_at, from_grants, overage)
    SELECT this_holder, made.event_type, added, weir_submit.job_id, now() + s.reservation_ttl, this_holder,
           account.starts[1], account.counted, account.at,
           CASE WHEN admits THEN clock_timestamp() END,
           CASE WHEN NOT admits AND want.run_at IS NULL THEN clock_timestamp() END,
           want.run_at, drawn, beyond - drawn
    FROM weir_settings s;
    UPDATE holders h
    SET slots_in_use = h.slots_in_use + admits::int,
        parked = h.parked + (NOT admits)::int,
        granted_slots = CASE WHEN admits THEN account.slots ELSE h.granted_slots END
    WHERE want.run_at IS NULL AND h.holder = this_holder AND h.event_type = made.event_type;
    INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, reserved, granted_limit)
    SELECT this_holder, made.event_type, w.span, w.first, added, coalesce(most_of(w.most, w.ceiling), 9223372036854775807)
    FROM unnest(account.spans, account.starts, account.limits, account.ceilings) AS w (span, first, most, ceiling)
    WHERE added > 0
    ON CONFLICT (user_id, event_type, span, period_start)
        DO UPDATE SET reserved = b.reserved + excluded.reserved,
            granted_limit = greatest(excluded.granted_limit, b.used + b.reserved - b.from_grants);
    IF drawn > 0 THEN
        WITH draws AS (
            INSERT INTO grant_draws (job_id, position, grant_id, amount)
            SELECT weir_submit.job_id, g.n - 1, g.id, least(g.amount, drawn - g.before)
            FROM grants_left(this_holder, made.event_type, account.at) g
            WHERE g.before < drawn
            RETURNING grant_id, amount
        )
        UPDATE grants g SET reserved = g.reserved + d.amount FROM draws d WHERE g.id = d.grant_id;
        UPDATE quota_balances b SET from_grants = b.from_grants + drawn
        WHERE b.user_id = this_holder AND b.event_type = made.event_type AND b.span = 'month'
          AND b.period_start = account.starts[1];
    END IF;
    IF admits THEN
        PERFORM pg_notify(river_channel('river_insert'), json_build_object('queue', lane_queue)::text);
    END IF;
    PERFORM set_config('weir.books', books, true);
END
$$;
