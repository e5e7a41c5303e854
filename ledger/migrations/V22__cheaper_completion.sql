-- What a completion costs in SQL is mostly what its statements cost to begin, and of that most is reading the expressions of
-- their tables anew: PostgreSQL keeps CHECKs and the conditions of triggers as text. So a job and those that are given its
-- slot are updated by one statement, and conditions are few and short.

-- The oldest jobs of a holder that have room, and what they are given: the lane of its plan, and the slots in force. The
-- caller holds the holder's lock.
CREATE FUNCTION next_in_line(of_holder uuid, meter text, of_user uuid, waiting int, in_use int,
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
    lane := coalesce(plan.lane, 'default');
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

-- The queue that a promoted job goes to. Only those of Weir's own lanes change: another client's may be called x_default.
CREATE FUNCTION queue_in_lane(queue text, lane text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    service text;
BEGIN
    SELECT s.name INTO service FROM weir_services s
    WHERE queue_in_lane.queue IN (s.name || '_priority', s.name || '_default');
    RETURN coalesce(service || '_' || lane, queue);
END
$$;

-- Tells the workers of a queue that a job is there, unless all of them are busy. Where jobs have waited for a while, every
-- worker claims the next one when it is done: nobody has to be woken, and a notification would wake them all. Of few jobs
-- the last may be claimed just now.
CREATE FUNCTION wake_queue(queue text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM river_job j
        WHERE j.state = 'available' AND j.queue = wake_queue.queue AND j.priority = 1
          AND j.scheduled_at < clock_timestamp() - interval '100 milliseconds'
        OFFSET 20
    ) THEN
        PERFORM pg_notify(river_channel('river_insert'), json_build_object('queue', wake_queue.queue)::text);
    END IF;
END
$$;

-- Books slots that were freed and given on. The caller holds the holder's lock.
CREATE FUNCTION book_slots(of_holder uuid, meter text, freed int, unparked int, given bigint[], in_force int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF given <> '{}' THEN
        UPDATE quota_reservations r SET admitted_at = clock_timestamp(), parked_at = NULL WHERE r.job_id = ANY (given);
    END IF;
    IF freed <> 0 OR unparked <> 0 OR given <> '{}' THEN
        UPDATE holders k
        SET slots_in_use = k.slots_in_use - freed + cardinality(given),
            parked = k.parked - unparked - cardinality(given),
            granted_slots = CASE WHEN given <> '{}' THEN in_force ELSE k.granted_slots END
        WHERE k.holder = of_holder AND k.event_type = meter;
    END IF;
END
$$;

-- As before, of the parts above.
CREATE OR REPLACE FUNCTION give_on(of_holder uuid, meter text, freed int, unparked int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    h holders;
    next record;
    woken record;
    given bigint[] := '{}';
    told text[] := '{}';
BEGIN
    SELECT * INTO h FROM holders k WHERE k.holder = of_holder AND k.event_type = meter;
    next := next_in_line(of_holder, meter, h.user_id, h.parked - unparked, h.slots_in_use - freed);
    IF next.jobs <> '{}' THEN
        FOR woken IN
            UPDATE river_job j
            SET state = 'available',
                scheduled_at = CASE WHEN j.state = 'pending' THEN greatest(j.scheduled_at, clock_timestamp())
                                    ELSE clock_timestamp() END,
                queue = queue_in_lane(j.queue, next.lane)
            WHERE j.id = ANY (next.jobs) AND (j.state IN ('pending', 'scheduled')) IS TRUE
            RETURNING j.id, j.queue
        LOOP
            given := given || woken.id;
            IF woken.queue <> ALL (told) THEN
                told := told || woken.queue;
                PERFORM wake_queue(woken.queue);
            END IF;
        END LOOP;
    END IF;
    PERFORM book_slots(of_holder, meter, freed, unparked, given, next.slots);
END
$$;

-- Takes a reservation away, whose job has ended, and charges `used` of it; what becomes of its slot is the caller's. The
-- caller holds the lock of `of_holder`.
CREATE FUNCTION charge_reservation(job bigint, of_holder uuid, is_completed boolean, used bigint,
                       OUT charged bigint, OUT meter text, OUT freed int, OUT unparked int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r quota_reservations;
    to_grants bigint;
BEGIN
    charged := 0;
    DELETE FROM quota_reservations q WHERE q.job_id = job RETURNING * INTO r;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF r.holder IS DISTINCT FROM of_holder THEN
        RAISE serialization_failure USING
            MESSAGE = format('somebody else gave job %s its place meanwhile', job), HINT = 'run the transaction again';
    END IF;
    meter := r.event_type;
    freed := (r.admitted_at IS NOT NULL)::int;
    unparked := (r.parked_at IS NOT NULL)::int;
    IF is_completed AND r.user_id IS NOT NULL AND r.period_start IS NOT NULL THEN
        charged := least(greatest(coalesce(charge_reservation.used, r.reserved_amount), 0), r.reserved_amount);
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
        WHERE b.user_id = r.user_id AND b.event_type = r.event_type AND b.span = 'month'
          AND b.period_start = r.period_start;
        IF r.windows <> 0 THEN
            UPDATE quota_balances b
            SET reserved = b.reserved - r.reserved_amount, used = b.used + charged
            FROM windows_of(r.period_start, r.windows, r.created_at) w
            WHERE b.user_id = r.user_id AND b.event_type = r.event_type AND b.span = w.span
              AND b.period_start = w.period_start AND w.span <> 'month';
        END IF;
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
END
$$;

-- As before, of the parts above.
CREATE OR REPLACE FUNCTION end_reservation(job bigint, of_holder uuid, is_completed boolean, used bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    ended record;
BEGIN
    ended := charge_reservation(job, of_holder, is_completed, used);
    IF ended.meter IS NOT NULL THEN
        PERFORM give_on(of_holder, ended.meter, ended.freed, ended.unparked);
    END IF;
    RETURN ended.charged;
END
$$;

-- As before; the job and those that are given its slot are updated by one statement.
CREATE OR REPLACE FUNCTION weir_complete(job_id bigint, attempt int, output jsonb DEFAULT NULL, used bigint DEFAULT NULL,
                              OUT outcome text, OUT charged bigint)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    books CONSTANT text := coalesce(current_setting('weir.books', true), '');
    bytes CONSTANT int := coalesce(octet_length(output::text), 0);
    of_holder uuid;
    held record;
    next record;
    ended record;
    changed record;
    given bigint[] := '{}';
    told text[] := '{}';
BEGIN
    PERFORM need_read_committed('weir_complete');
    IF bytes > 4194304 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the output is larger than 4 MiB',
            HINT = 'store it elsewhere and complete the job with where it is';
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
        FOR NO KEY UPDATE OF h, j, r;
        -- Without one, it is not this attempt's any more, or it has no reservation, or somebody deleted the holder, which is
        -- made again.
        EXIT WHEN FOUND;
        of_holder := (lock_holder_of(weir_complete.job_id)).holder;
        EXIT WHEN of_holder IS NULL;
    END LOOP;
    of_holder := coalesce(held.holder, of_holder);
    -- Where a waiting job may have the key of this one, they take turns: a unique index looks at each row by itself.
    next := next_in_line(held.holder, held.meter, held.user_id, CASE WHEN held.alone THEN held.waiting ELSE 0 END, held.in_use);
    PERFORM set_config('weir.books', 'kept', true);
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
                   THEN j.attempt = weir_complete.attempt AND (j.state = 'running') IS TRUE
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
            PERFORM book_slots(of_holder, held.meter, ended.freed, ended.unparked, given, next.slots);
        ELSE
            charged := end_reservation(weir_complete.job_id, of_holder, true, weir_complete.used);
        END IF;
    ELSE
        outcome := 'fenced_out';
    END IF;
    PERFORM set_config('weir.books', books, true);
END
$$;

-- As before, with what grants pay for, which had triggers of its own.
CREATE OR REPLACE FUNCTION book_usage_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM lock_holders(ARRAY(SELECT DISTINCT user_id FROM old_rows));
        UPDATE quota_balances b SET used = b.used - o.amount, from_grants = b.from_grants - o.from_grants
        FROM (SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.quota_amount) AS amount,
                     coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0) AS from_grants
              FROM old_rows r
              CROSS JOIN LATERAL windows_of(r.period_start, r.windows, coalesce(r.reserved_at, r.created_at)) w
              GROUP BY 1, 2, 3, 4) o
        WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, o.span, o.period_start);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM need_meters(ARRAY(SELECT DISTINCT event_type::text FROM new_rows));
        PERFORM lock_holders(ARRAY(SELECT DISTINCT user_id FROM new_rows));
        INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, used, from_grants)
        SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.quota_amount),
               coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0)
        FROM new_rows r
        CROSS JOIN LATERAL windows_of(r.period_start, r.windows, coalesce(r.reserved_at, r.created_at)) w
        GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (user_id, event_type, span, period_start)
            DO UPDATE SET used = b.used + excluded.used, from_grants = b.from_grants + excluded.from_grants;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION book_quota_reservations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM lock_holders(ARRAY(SELECT DISTINCT holder FROM old_rows));
        UPDATE holders h SET slots_in_use = h.slots_in_use - o.slots, parked = h.parked - o.parked
        FROM (SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked
              FROM old_rows GROUP BY 1, 2) o
        WHERE (h.holder, h.event_type) = (o.holder, o.event_type);
        UPDATE quota_balances b SET reserved = b.reserved - o.amount, from_grants = b.from_grants - o.from_grants
        FROM (SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.reserved_amount) AS amount,
                     coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0) AS from_grants
              FROM old_rows r
              CROSS JOIN LATERAL windows_of(r.period_start, r.windows, r.created_at) w
              WHERE r.user_id IS NOT NULL GROUP BY 1, 2, 3, 4) o
        WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, o.span, o.period_start);
    END IF;
    IF TG_OP = 'DELETE' THEN
        PERFORM settle_draws(array_agg(o.job_id), array_agg(0::bigint)) FROM old_rows o WHERE o.from_grants > 0;
    ELSE
        PERFORM need_meters(ARRAY(SELECT DISTINCT event_type::text FROM new_rows));
        INSERT INTO holders AS h (holder, event_type, user_id, slots_in_use, parked)
        SELECT holder, event_type, user_id, count(admitted_at), count(parked_at)
        FROM new_rows GROUP BY 1, 2, 3 ORDER BY 1, 2
        ON CONFLICT (holder, event_type) DO UPDATE
            SET slots_in_use = h.slots_in_use + excluded.slots_in_use, parked = h.parked + excluded.parked;
        INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, reserved, from_grants)
        SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.reserved_amount),
               coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0)
        FROM new_rows r
        CROSS JOIN LATERAL windows_of(r.period_start, r.windows, r.created_at) w
        WHERE r.user_id IS NOT NULL GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (user_id, event_type, span, period_start)
            DO UPDATE SET reserved = b.reserved + excluded.reserved, from_grants = b.from_grants + excluded.from_grants;
    END IF;
    RETURN NULL;
END
$$;
DROP FUNCTION book_from_grants() CASCADE;

-- As before, with its conditions inside: hardly anybody wants to hear of thresholds.
CREATE OR REPLACE FUNCTION tell_usage() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF NEW.span IN ('month', 'day') AND (TG_OP = 'INSERT' OR NEW.used > OLD.used) THEN
        PERFORM tell_thresholds(NEW.user_id, NEW.event_type);
    END IF;
    RETURN NULL;
END
$$;
DROP TRIGGER tell_usage ON quota_balances;
CREATE TRIGGER tell_usage AFTER UPDATE OF used ON quota_balances FOR EACH ROW
    WHEN (current_setting('weir.tells', true) = 'thresholds') EXECUTE FUNCTION tell_usage();
