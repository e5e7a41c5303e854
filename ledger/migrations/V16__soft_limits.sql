-- Soft limits: beyond the limit of a window, jobs are accepted up to its ceiling. What the plan's month and grants have no room
-- for is overage, which the reservation and the usage event say.

ALTER TABLE plan_limits
    ADD COLUMN month_ceiling bigint CHECK (month_ceiling >= 0),
    ADD COLUMN day_ceiling bigint CHECK (day_ceiling >= 0),
    ADD COLUMN hour_ceiling bigint CHECK (hour_ceiling >= 0),
    ADD COLUMN minute_ceiling bigint CHECK (minute_ceiling >= 0);
COMMENT ON COLUMN plan_limits.month_ceiling IS 'up to where more than the limit is accepted; null is a hard limit';
ALTER TABLE quota_reservations ADD COLUMN overage bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN quota_reservations.overage IS 'how much of reserved_amount neither the month nor grants had room for';
ALTER TABLE usage_events ADD COLUMN overage bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN usage_events.overage IS 'how much of quota_amount that was, when the job was accepted';

-- Beyond what nothing is accepted. A ceiling below the limit is none.
CREATE FUNCTION most_of(most bigint, ceiling bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN most IS NOT NULL THEN greatest(most, ceiling) END
$$;

-- As before, with ceilings.
DROP FUNCTION limits_of(uuid, text, timestamptz);
-- What a user may have of a meter at a moment: by the plan of the active subscription, or else the default one; limits of
-- the user's own count before the plan's, and are hard. `anchor` is where its billing periods are counted from.
CREATE FUNCTION limits_of(of_user uuid, meter text, moment timestamptz)
RETURNS TABLE (tier text, lane text, slots int, own_slots int, max_waiting int, month bigint, day bigint, hour bigint,
               minute bigint, counted smallint, anchor timestamptz,
               month_ceiling bigint, day_ceiling bigint, hour_ceiling bigint, minute_ceiling bigint)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT p.tier::text, p.lane, coalesce(l.slots, no_limits_for(meter)), own.slots, p.max_waiting,
           nullif(coalesce(own.month, l.month), -1), nullif(coalesce(own.day, l.day), -1),
           nullif(coalesce(own.hour, l.hour), -1), nullif(coalesce(own.minute, l.minute), -1), l.counted,
           coalesce(s.current_period_start, timestamptz '2000-01-01 00:00:00+00'),
           CASE WHEN own.month IS NULL THEN l.month_ceiling END, CASE WHEN own.day IS NULL THEN l.day_ceiling END,
           CASE WHEN own.hour IS NULL THEN l.hour_ceiling END, CASE WHEN own.minute IS NULL THEN l.minute_ceiling END
    FROM (SELECT 1) AS one
    LEFT JOIN LATERAL (
        SELECT u.current_period_start, CASE WHEN u.next_plan_at <= moment THEN u.next_plan_id ELSE u.plan_id END AS plan_id
        FROM user_subscriptions u WHERE u.user_id = of_user AND u.status = 'active'
    ) s ON true
    JOIN subscription_plans p ON p.id = s.plan_id OR s.plan_id IS NULL AND p.is_default
    LEFT JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = meter
    LEFT JOIN limit_overrides own
        ON own.user_id = of_user AND own.event_type = meter AND (own.expires_at IS NULL OR own.expires_at > moment)
$$;

DROP FUNCTION account_of(uuid, text);
-- An account: what a holder has of a meter and what it may have, window by window, the month first. The caller holds
-- its lock. The same reading as reservation/sql/read.sql.
CREATE FUNCTION account_of(of_holder uuid, meter text)
RETURNS TABLE (user_id uuid, slots_in_use int, parked int, tier text, lane text, slots int, at timestamptz,
               counted smallint, max_waiting int, from_grants bigint, granted bigint, spans text[], starts timestamptz[],
               ends timestamptz[], limits bigint[], used bigint[], reserved bigint[], ceilings bigint[])
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT h.user_id, h.slots_in_use, h.parked, plan.tier, plan.lane,
           slots_in_force(h.user_id, plan.tier, plan.slots, plan.own_slots), clock.at, coalesce(plan.counted, 0::smallint),
           plan.max_waiting, coalesce(w.from_grants, 0),
           CASE WHEN h.has_grants THEN
               coalesce((SELECT sum(g.amount)::bigint FROM grants_left(h.user_id, h.event_type, clock.at) g), 0)
           ELSE 0 END,
           w.spans, w.starts, w.ends, w.limits, w.used, w.reserved, w.ceilings
    FROM (SELECT * FROM holders k WHERE k.holder = of_holder AND k.event_type = meter) h
    CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
    LEFT JOIN LATERAL limits_of(h.user_id, h.event_type, clock.at) plan ON h.user_id IS NOT NULL
    LEFT JOIN LATERAL (
        SELECT array_agg(c.span ORDER BY c.bit) AS spans, array_agg(c.first ORDER BY c.bit) AS starts,
               array_agg(c.past ORDER BY c.bit) AS ends, array_agg(c.most ORDER BY c.bit) AS limits,
               array_agg(coalesce(b.used, 0) ORDER BY c.bit) AS used,
               array_agg(coalesce(b.reserved, 0) ORDER BY c.bit) AS reserved,
               array_agg(c.ceiling ORDER BY c.bit) AS ceilings,
               sum(b.from_grants) FILTER (WHERE c.bit = 0)::bigint AS from_grants
        FROM (
            SELECT 0 AS bit, 'month' AS span, plan.month AS most, plan.month_ceiling AS ceiling, p.period_start AS first, p.period_end AS past
            FROM billing_period(plan.anchor, clock.at) p
            UNION ALL
            SELECT s.bit, s.span, s.most, s.ceiling, date_trunc(s.span, clock.at, 'UTC'),
                   date_trunc(s.span, clock.at, 'UTC') + s.length
            FROM (VALUES (1, 'day', plan.day, plan.day_ceiling, interval '24 hours'),
                         (2, 'hour', plan.hour, plan.hour_ceiling, interval '1 hour'),
                         (4, 'minute', plan.minute, plan.minute_ceiling, interval '1 minute'))
                AS s (bit, span, most, ceiling, length)
            WHERE plan.counted & s.bit <> 0
        ) c
        LEFT JOIN quota_balances b
            ON b.user_id = h.user_id AND b.event_type = h.event_type AND b.span = c.span AND b.period_start = c.first
    ) w ON h.user_id IS NOT NULL
$$;

DROP FUNCTION quota_json(bigint, bigint, bigint, timestamptz, bigint, bigint);
-- A quota as the API answers it. What remains is what would still be accepted: of the plan's, in a month of grants besides, and
-- up to the ceiling of a soft limit.
CREATE FUNCTION quota_json(used bigint, reserved bigint, most bigint, reset_at timestamptz, from_grants bigint DEFAULT 0,
                           granted bigint DEFAULT 0, ceiling bigint DEFAULT NULL) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'used', used, 'reserved', reserved, 'limit', most,
        'ceiling', CASE WHEN ceiling > most THEN ceiling END,
        'overage', CASE WHEN ceiling > most THEN greatest(used::numeric + reserved - from_grants - most, 0)::bigint ELSE 0 END,
        'remaining', CASE WHEN most IS NOT NULL
                          THEN (greatest(most_of(most, ceiling)::numeric - (used::numeric + reserved - from_grants), 0)
                                + granted)::bigint END,
        'reset_at', to_char(reset_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
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
        UPDATE submissions s SET idempotency_key = NULL
        WHERE s.holder = this_holder AND s.idempotency_key = want.idempotency_key;
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
    WHERE added > 0 AND w.used::numeric + w.reserved + added > most_of(w.most, w.ceiling)::numeric + g.paid + g.granted;
    IF without_room IS NOT NULL THEN
        outcome := 'over_quota';
        quota := quota || jsonb_build_object('windows', without_room);
        RETURN;
    END IF;

    admits := want.run_at IS NULL AND account.parked = 0 AND account.slots_in_use < account.slots;
    IF NOT admits AND want.run_at IS NULL AND account.parked >= account.max_waiting THEN
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
    INSERT INTO submissions (job_id, holder, user_id, event_type, reserved_amount, idempotency_key, request_hash)
    VALUES (weir_submit.job_id, this_holder, this_holder, made.event_type, added, want.idempotency_key, hash);
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
        DO UPDATE SET reserved = b.reserved + excluded.reserved, granted_limit = excluded.granted_limit;
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

-- Takes a reservation away, whose job has ended, charges `used` of it, and gives its slot on. The caller holds the lock of
-- `of_holder`. Returns what was charged.
CREATE OR REPLACE FUNCTION end_reservation(job bigint, of_holder uuid, is_completed boolean, used bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r quota_reservations;
    charged bigint := 0;
    to_grants bigint;
BEGIN
    DELETE FROM quota_reservations q WHERE q.job_id = job RETURNING * INTO r;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF r.holder IS DISTINCT FROM of_holder THEN
        RAISE serialization_failure USING
            MESSAGE = format('somebody else gave job %s its place meanwhile', job), HINT = 'run the transaction again';
    END IF;
    IF is_completed AND r.user_id IS NOT NULL AND r.period_start IS NOT NULL THEN
        charged := least(greatest(coalesce(end_reservation.used, r.reserved_amount), 0), r.reserved_amount);
    END IF;
    IF charged > 0 THEN
        INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start, windows, reserved_at, overage)
        VALUES (r.user_id, r.event_type, charged, r.job_id, r.period_start, r.windows,
                CASE WHEN r.windows <> 0 THEN r.created_at END,
                -- Charged last of all.
                least(greatest(charged - (r.reserved_amount - r.overage), 0), r.overage))
        ON CONFLICT (job_id) DO NOTHING;
        IF NOT FOUND THEN
            -- Somebody has charged it already.
            charged := 0;
        END IF;
    END IF;
    IF r.user_id IS NOT NULL AND r.period_start IS NOT NULL AND r.reserved_amount > 0 THEN
        UPDATE quota_balances b
        SET reserved = b.reserved - r.reserved_amount, used = b.used + charged
        FROM windows_of(r.period_start, r.windows, r.created_at) w
        WHERE b.user_id = r.user_id AND b.event_type = r.event_type AND b.span = w.span
          AND b.period_start = w.period_start;
    END IF;
    IF r.from_grants > 0 THEN
        -- The plan's part is charged first; what was not used returns to the grants.
        to_grants := least(greatest(charged - greatest(r.reserved_amount - r.overage - r.from_grants, 0), 0),
                           r.from_grants);
        UPDATE usage_events u SET from_grants = to_grants WHERE u.job_id = job AND to_grants > 0;
        UPDATE quota_balances b SET from_grants = b.from_grants - (r.from_grants - to_grants)
        WHERE b.user_id = r.user_id AND b.event_type = r.event_type AND b.span = 'month'
          AND b.period_start = r.period_start;
        PERFORM settle_draws(ARRAY[job], ARRAY[to_grants]);
    END IF;
    PERFORM give_on(r.holder, r.event_type, (r.admitted_at IS NOT NULL)::int, (r.parked_at IS NOT NULL)::int);
    RETURN charged;
END
$$;

DROP FUNCTION windows_in_force(quota_reservations);
-- The windows that a reservation is counted in, whichever it is now: what is taken of them, and the limits of today.
CREATE FUNCTION windows_in_force(r quota_reservations)
RETURNS TABLE (span text, period_start timestamptz, reset_at timestamptz, used bigint, reserved bigint, most bigint,
               from_grants bigint, ceiling bigint)
LANGUAGE sql STABLE AS $$
    SELECT w.span, w.period_start,
           (SELECT p.period_end FROM billing_period(l.anchor, w.period_start) p WHERE w.span = 'month'),
           coalesce(b.used, 0), coalesce(b.reserved, 0),
           CASE w.span WHEN 'month' THEN l.month WHEN 'day' THEN l.day WHEN 'hour' THEN l.hour ELSE l.minute END,
           coalesce(b.from_grants, 0),
           CASE w.span WHEN 'month' THEN l.month_ceiling WHEN 'day' THEN l.day_ceiling WHEN 'hour' THEN l.hour_ceiling
                       ELSE l.minute_ceiling END
    FROM windows_of(r.period_start, r.windows, r.created_at) w
    CROSS JOIN limits_of(r.user_id, r.event_type, clock_timestamp()) l
    LEFT JOIN quota_balances b
        ON b.user_id = r.user_id AND b.event_type = r.event_type AND b.span = w.span AND b.period_start = w.period_start
    WHERE r.user_id IS NOT NULL
$$;

CREATE OR REPLACE FUNCTION weir_extend(job_id bigint, attempt int, more bigint, OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    books CONSTANT text := coalesce(current_setting('weir.books', true), '');
    locked record;
    r quota_reservations;
    has_room boolean;
    beyond bigint;
BEGIN
    PERFORM need_read_committed('weir_extend');
    IF more IS NULL OR more NOT BETWEEN 1 AND 1000000000000000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'more must be from 1 to 1000000000000000';
    END IF;
    SELECT * INTO locked FROM lock_holder_of(weir_extend.job_id);
    SELECT q.* INTO r
    FROM quota_reservations q JOIN river_job j ON j.id = q.job_id
    WHERE q.job_id = weir_extend.job_id AND q.holder = locked.holder AND j.attempt = weir_extend.attempt
      AND (j.state = 'running') IS TRUE
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    -- The plan has to do: grants are drawn on when a job is submitted.
    SELECT coalesce(bool_and(w.most IS NULL OR w.used::numeric + w.reserved + more <= most_of(w.most, w.ceiling)::numeric + w.from_grants),
                    true),
           (jsonb_agg(quota_json(w.used, w.reserved, w.most, w.reset_at, w.from_grants, 0, w.ceiling))
                FILTER (WHERE w.span = 'month')) -> 0,
           coalesce(max(least(w.used::numeric + w.reserved + more - w.from_grants - w.most, more))
                        FILTER (WHERE w.span = 'month'), 0)::bigint
    INTO has_room, quota, beyond
    FROM windows_in_force(r) w;
    IF NOT has_room THEN
        outcome := 'over_quota';
        RETURN;
    END IF;
    outcome := 'extended';
    PERFORM set_config('weir.books', 'kept', true);
    UPDATE quota_reservations q
    SET reserved_amount = q.reserved_amount + more, overage = q.overage + greatest(beyond, 0)
    WHERE q.job_id = r.job_id AND r.user_id IS NOT NULL;
    UPDATE submissions s SET reserved_amount = s.reserved_amount + more
    WHERE s.job_id = r.job_id AND r.user_id IS NOT NULL;
    INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, reserved, granted_limit)
    SELECT r.user_id, r.event_type, w.span, w.period_start, more, coalesce(most_of(w.most, w.ceiling), 9223372036854775807)
    FROM windows_in_force(r) w
    ON CONFLICT (user_id, event_type, span, period_start)
        DO UPDATE SET reserved = b.reserved + excluded.reserved, granted_limit = excluded.granted_limit;
    SELECT quota_json(w.used, w.reserved, w.most, w.reset_at, w.from_grants, 0, w.ceiling) INTO quota
    FROM windows_in_force(r) w WHERE w.span = 'month';
    PERFORM set_config('weir.books', books, true);
END
$$;
