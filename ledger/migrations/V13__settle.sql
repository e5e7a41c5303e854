-- Settlement inside a worker's own transaction, in any language: as ledger/src/settlement does it, one job at a time. The
-- caller's transaction may have begun long ago, so the time is the clock's.

-- Locks the holder of a job's reservation, and says which it is; null without one.
CREATE FUNCTION lock_holder_of(job bigint, OUT holder uuid, OUT event_type text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    SELECT r.holder, r.event_type INTO lock_holder_of.holder, lock_holder_of.event_type
    FROM quota_reservations r WHERE r.job_id = job;
    IF lock_holder_of.holder IS NULL THEN
        RETURN;
    END IF;
    PERFORM 1 FROM holders h
    WHERE h.holder = lock_holder_of.holder AND h.event_type = lock_holder_of.event_type FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        -- Somebody deleted it. It is made again, with what its rows say.
        INSERT INTO holders (holder, event_type, user_id, slots_in_use, parked)
        SELECT r.holder, r.event_type, max(r.user_id::text)::uuid, count(r.admitted_at), count(r.parked_at)
        FROM quota_reservations r
        WHERE r.holder = lock_holder_of.holder AND r.event_type = lock_holder_of.event_type
        GROUP BY 1, 2
        ON CONFLICT DO NOTHING;
        PERFORM 1 FROM holders h
        WHERE h.holder = lock_holder_of.holder AND h.event_type = lock_holder_of.event_type FOR NO KEY UPDATE;
    END IF;
END
$$;

-- Gives free slots of a holder to its oldest parked jobs, which become available now, at the tail of the lane that its plan
-- has now, and books what was freed for them. The caller holds the holder's lock. As settlement/sql/promote.sql.
CREATE FUNCTION give_on(of_holder uuid, meter text, freed int, unparked int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    h record;
    woken record;
    given int := 0;
    -- What is left is promoted by the next one: when limits are lifted, all that waits becomes free at once.
    most CONSTANT int := 1000;
BEGIN
    SELECT k.*, p.lane, slots_in_force(k.user_id, p.tier, p.slots, p.own_slots) AS slots INTO h
    FROM holders k
    LEFT JOIN LATERAL plan_of(k.user_id, k.event_type) p ON k.user_id IS NOT NULL
    WHERE k.holder = of_holder AND k.event_type = meter;
    FOR woken IN
        WITH picked AS MATERIALIZED (
            SELECT r.job_id
            FROM quota_reservations r
            WHERE r.holder = of_holder AND r.event_type = meter AND r.parked_at IS NOT NULL
              AND (SELECT j.state IN ('pending', 'scheduled') FROM river_job j WHERE j.id = r.job_id)
            ORDER BY r.job_id
            LIMIT least(most, greatest(least(h.parked - unparked, h.slots::bigint - (h.slots_in_use - freed)), 0))
        )
        UPDATE river_job j
        SET state = 'available',
            scheduled_at = CASE WHEN j.state = 'pending' THEN greatest(j.scheduled_at, clock_timestamp())
                                ELSE clock_timestamp() END,
            -- Only the queues of Weir's own lanes are changed: another client's queue may be called x_default.
            queue = coalesce((
                SELECT s.name || '_' || coalesce(h.lane, 'default') FROM weir_services s
                WHERE j.queue IN (s.name || '_priority', s.name || '_default')), j.queue)
        FROM picked p
        WHERE j.id = p.job_id AND (j.state IN ('pending', 'scheduled')) IS TRUE
        RETURNING j.id, j.queue
    LOOP
        given := given + 1;
        UPDATE quota_reservations r SET admitted_at = clock_timestamp(), parked_at = NULL WHERE r.job_id = woken.id;
        PERFORM pg_notify(river_channel('river_insert'), json_build_object('queue', woken.queue)::text);
    END LOOP;
    UPDATE holders k
    SET slots_in_use = k.slots_in_use - freed + given,
        parked = k.parked - unparked - given,
        granted_slots = CASE WHEN given > 0 THEN h.slots ELSE k.granted_slots END
    WHERE k.holder = of_holder AND k.event_type = meter AND (freed, unparked, given) <> (0, 0, 0);
END
$$;

-- Takes a reservation away, whose job has ended, charges `used` of it, and gives its slot on. The caller holds the lock of
-- `of_holder`. Returns what was charged.
CREATE FUNCTION end_reservation(job bigint, of_holder uuid, is_completed boolean, used bigint) RETURNS bigint
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
        INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start, windows, reserved_at)
        VALUES (r.user_id, r.event_type, charged, r.job_id, r.period_start, r.windows,
                CASE WHEN r.windows <> 0 THEN r.created_at END)
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
        to_grants := least(greatest(charged - greatest(r.reserved_amount - r.from_grants, 0), 0), r.from_grants);
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

CREATE FUNCTION weir_complete(job_id bigint, attempt int, output jsonb DEFAULT NULL, used bigint DEFAULT NULL,
                              OUT outcome text, OUT charged bigint)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    books CONSTANT text := coalesce(current_setting('weir.books', true), '');
    locked record;
BEGIN
    PERFORM need_read_committed('weir_complete');
    IF octet_length(output::text) > 4194304 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the output is larger than 4 MiB',
            HINT = 'store it elsewhere and complete the job with where it is';
    END IF;
    SELECT * INTO locked FROM lock_holder_of(weir_complete.job_id);
    PERFORM set_config('weir.books', 'kept', true);
    -- As River's JobCompleteTx does it, but only the attempt that did the work.
    UPDATE river_job j
    SET state = 'completed', finalized_at = clock_timestamp(),
        metadata = j.metadata || jsonb_strip_nulls(jsonb_build_object('weir:used', weir_complete.used))
            || CASE WHEN output <> 'null' THEN jsonb_build_object('output', output) ELSE '{}' END,
        attempted_at = attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at)
    WHERE j.id = weir_complete.job_id AND j.attempt = weir_complete.attempt AND (j.state = 'running') IS TRUE;
    IF FOUND THEN
        outcome := 'done';
        charged := end_reservation(weir_complete.job_id, locked.holder, true, weir_complete.used);
    ELSE
        outcome := 'fenced_out';
        charged := 0;
    END IF;
    PERFORM set_config('weir.books', books, true);
END
$$;
COMMENT ON FUNCTION weir_complete IS
    'completes a job, charges it and gives its slot on, in the transaction of the caller; outcome: done, fenced_out';

-- The pause before the next attempt, in seconds: the service's own policy, or River's, each spread by a tenth.
CREATE FUNCTION retry_pause(job_kind text, errors int) RETURNS double precision
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(
        (SELECT least(s.retry_base * power(s.retry_factor, least(errors, 1000)), s.retry_max)
         FROM weir_services s WHERE s.kind = job_kind AND s.retry_base IS NOT NULL LIMIT 1),
        power(least(errors, 1000) + 1, 4)) * (0.9 + 0.2 * random())
$$;

CREATE FUNCTION weir_fail(job_id bigint, attempt int, error text, retry_at timestamptz DEFAULT NULL, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    books CONSTANT text := coalesce(current_setting('weir.books', true), '');
    locked record;
    job river_job;
    ends river_job_state;
    again timestamptz;
    held record;
BEGIN
    PERFORM need_read_committed('weir_fail');
    IF NOT isfinite(retry_at) OR retry_at > clock_timestamp() + interval '366 days' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'retry_at must be within 366 days';
    END IF;
    SELECT * INTO locked FROM lock_holder_of(weir_fail.job_id);
    SELECT * INTO job FROM river_job j
    WHERE j.id = weir_fail.job_id AND j.attempt = weir_fail.attempt AND (j.state = 'running') IS TRUE
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    PERFORM set_config('weir.books', 'kept', true);
    ends := CASE WHEN job.metadata ? 'cancel_attempted_at' THEN 'cancelled'
                 WHEN job.attempt >= job.max_attempts THEN 'discarded'
                 ELSE 'retryable' END;
    -- Not at once: River's client may still report on this attempt, and does not say which one it means.
    again := greatest(
        coalesce(weir_fail.retry_at,
                 clock_timestamp() + make_interval(secs => retry_pause(job.kind, coalesce(cardinality(job.errors), 0)))),
        clock_timestamp() + interval '1 second');
    UPDATE river_job j
    SET state = ends,
        scheduled_at = CASE WHEN ends = 'retryable' THEN again ELSE j.scheduled_at END,
        finalized_at = CASE WHEN ends <> 'retryable' THEN clock_timestamp() END,
        errors = array_append(j.errors, jsonb_build_object(
            'at', to_char(attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at) AT TIME ZONE 'UTC',
                          'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            'attempt', j.attempt, 'error', left(coalesce(weir_fail.error, ''), 10000), 'trace', ''))
    WHERE j.id = job.id;
    IF ends = 'retryable' THEN
        outcome := 'retry';
        -- It keeps its quota and gives its slot. Shortly before it is due, it asks for one.
        UPDATE quota_reservations r
        SET admitted_at = NULL, due_at = again - interval '500 milliseconds'
        FROM quota_reservations o
        WHERE r.job_id = job.id AND o.job_id = r.job_id AND r.parked_at IS NULL
        RETURNING o.holder, o.event_type, o.admitted_at IS NOT NULL AS had_slot INTO held;
        IF FOUND THEN
            PERFORM give_on(held.holder, held.event_type, held.had_slot::int, 0);
        END IF;
    ELSE
        outcome := ends;
        PERFORM end_reservation(job.id, locked.holder, false, NULL);
    END IF;
    PERFORM set_config('weir.books', books, true);
END
$$;
COMMENT ON FUNCTION weir_fail IS
    'records a failed attempt as River does and gives its slot on; outcome: retry, discarded, cancelled, fenced_out';

CREATE FUNCTION weir_progress(job_id bigint, attempt int, fraction double precision, message text DEFAULT NULL,
                              OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    books CONSTANT text := coalesce(current_setting('weir.books', true), '');
BEGIN
    IF fraction IS NULL OR fraction NOT BETWEEN 0 AND 1 OR octet_length(message) > 1000 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'a progress has a fraction from 0 to 1, and a message of at most 1000 bytes';
    END IF;
    PERFORM set_config('weir.books', 'kept', true);
    UPDATE quota_reservations r
    SET progress = jsonb_build_object('attempt', attempt, 'fraction', fraction, 'message', weir_progress.message)
    WHERE r.job_id = weir_progress.job_id
      AND EXISTS (SELECT 1 FROM river_job j
                  WHERE j.id = weir_progress.job_id AND j.attempt = weir_progress.attempt AND (j.state = 'running') IS TRUE);
    outcome := CASE WHEN FOUND THEN 'done' ELSE 'fenced_out' END;
    PERFORM set_config('weir.books', books, true);
END
$$;
COMMENT ON FUNCTION weir_progress IS 'says how far an attempt is, for its owner; outcome: done, fenced_out';

-- The windows that a reservation is counted in, whichever it is now: what is taken of them, and the limits of today.
CREATE FUNCTION windows_in_force(r quota_reservations)
RETURNS TABLE (span text, period_start timestamptz, reset_at timestamptz, used bigint, reserved bigint, most bigint,
               from_grants bigint)
LANGUAGE sql STABLE AS $$
    SELECT w.span, w.period_start,
           (SELECT p.period_end FROM billing_period(l.anchor, w.period_start) p WHERE w.span = 'month'),
           coalesce(b.used, 0), coalesce(b.reserved, 0),
           CASE w.span WHEN 'month' THEN l.month WHEN 'day' THEN l.day WHEN 'hour' THEN l.hour ELSE l.minute END,
           coalesce(b.from_grants, 0)
    FROM windows_of(r.period_start, r.windows, r.created_at) w
    CROSS JOIN limits_of(r.user_id, r.event_type, clock_timestamp()) l
    LEFT JOIN quota_balances b
        ON b.user_id = r.user_id AND b.event_type = r.event_type AND b.span = w.span AND b.period_start = w.period_start
    WHERE r.user_id IS NOT NULL
$$;

CREATE FUNCTION weir_extend(job_id bigint, attempt int, more bigint, OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    books CONSTANT text := coalesce(current_setting('weir.books', true), '');
    locked record;
    r quota_reservations;
    has_room boolean;
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
    SELECT coalesce(bool_and(w.most IS NULL OR w.used::numeric + w.reserved + more <= w.most::numeric + w.from_grants), true),
           (jsonb_agg(quota_json(w.used, w.reserved, w.most, w.reset_at, w.from_grants)) FILTER (WHERE w.span = 'month')) -> 0
    INTO has_room, quota
    FROM windows_in_force(r) w;
    IF NOT has_room THEN
        outcome := 'over_quota';
        RETURN;
    END IF;
    outcome := 'extended';
    PERFORM set_config('weir.books', 'kept', true);
    UPDATE quota_reservations q SET reserved_amount = q.reserved_amount + more
    WHERE q.job_id = r.job_id AND r.user_id IS NOT NULL;
    UPDATE submissions s SET reserved_amount = s.reserved_amount + more
    WHERE s.job_id = r.job_id AND r.user_id IS NOT NULL;
    INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, reserved, granted_limit)
    SELECT r.user_id, r.event_type, w.span, w.period_start, more, coalesce(w.most, 9223372036854775807)
    FROM windows_in_force(r) w
    ON CONFLICT (user_id, event_type, span, period_start)
        DO UPDATE SET reserved = b.reserved + excluded.reserved, granted_limit = excluded.granted_limit;
    SELECT quota_json(w.used, w.reserved, w.most, w.reset_at, w.from_grants) INTO quota
    FROM windows_in_force(r) w WHERE w.span = 'month';
    PERFORM set_config('weir.books', books, true);
END
$$;
COMMENT ON FUNCTION weir_extend IS
    'reserves more for a job that runs; outcome: extended, over_quota (nothing changed), fenced_out';
