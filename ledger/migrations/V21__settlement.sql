-- Settlement in SQL by statements of one table each: each works on a row or two, so that what it costs to begin, which grows
-- with its plan, is most of what it costs.

-- As before, planned once a session.
CREATE OR REPLACE FUNCTION slots_in_force(of_user uuid, plan text, slots_of_plan int, own_slots int) RETURNS int
LANGUAGE plpgsql STABLE AS $$
DECLARE
    s weir_settings;
BEGIN
    SELECT * INTO s FROM weir_settings;
    RETURN CASE WHEN NOT s.counts_slots THEN 2147483647
                -- Who has no plan for the meter has what an address has.
                WHEN of_user IS NULL OR plan IS NULL THEN s.anonymous_slots
                ELSE coalesce(own_slots, (s.slots_of_plans ->> plan)::int, slots_of_plan) END;
END
$$;

-- Locks the holder of a job's reservation, and says which it is; null without one.
CREATE OR REPLACE FUNCTION lock_holder_of(job bigint, OUT holder uuid, OUT event_type text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    SELECT h.holder, h.event_type INTO lock_holder_of.holder, lock_holder_of.event_type
    FROM quota_reservations r JOIN holders h ON h.holder = r.holder AND h.event_type = r.event_type
    WHERE r.job_id = job
    FOR NO KEY UPDATE OF h;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT r.holder, r.event_type INTO lock_holder_of.holder, lock_holder_of.event_type
    FROM quota_reservations r WHERE r.job_id = job;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- Somebody deleted the holder. It is made again, with what its rows say.
    INSERT INTO holders (holder, event_type, user_id, slots_in_use, parked)
    SELECT r.holder, r.event_type, max(r.user_id::text)::uuid, count(r.admitted_at), count(r.parked_at)
    FROM quota_reservations r
    WHERE r.holder = lock_holder_of.holder AND r.event_type = lock_holder_of.event_type
    GROUP BY 1, 2
    ON CONFLICT DO NOTHING;
    PERFORM 1 FROM holders h
    WHERE h.holder = lock_holder_of.holder AND h.event_type = lock_holder_of.event_type FOR NO KEY UPDATE;
END
$$;

-- Gives free slots of a holder to its oldest parked jobs, which become available now, at the tail of the lane that its plan
-- has now, and books what was freed for them. The caller holds the holder's lock. As settlement/sql/promote.sql.
CREATE OR REPLACE FUNCTION give_on(of_holder uuid, meter text, freed int, unparked int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    h holders;
    plan record;
    slots int;
    oldest bigint[] := '{}';
    woken record;
    given bigint[] := '{}';
    told text[] := '{}';
BEGIN
    SELECT * INTO h FROM holders k WHERE k.holder = of_holder AND k.event_type = meter;
    IF h.parked > unparked THEN
        SELECT * INTO plan FROM plan_of(h.user_id, meter);
        slots := slots_in_force(h.user_id, plan.tier, plan.slots, plan.own_slots);
        -- What is left is promoted by the next one: when limits are lifted, all that waits becomes free at once.
        oldest := ARRAY(
            SELECT r.job_id
            FROM quota_reservations r
            WHERE r.holder = of_holder AND r.event_type = meter AND r.parked_at IS NOT NULL
              AND (SELECT j.state IN ('pending', 'scheduled') FROM river_job j WHERE j.id = r.job_id)
            ORDER BY r.job_id
            LIMIT least(1000, greatest(least(h.parked - unparked, slots::bigint - (h.slots_in_use - freed)), 0))
        );
    END IF;
    IF oldest <> '{}' THEN
        FOR woken IN
            UPDATE river_job j
            SET state = 'available',
                scheduled_at = CASE WHEN j.state = 'pending' THEN greatest(j.scheduled_at, clock_timestamp())
                                    ELSE clock_timestamp() END,
                -- Only the queues of Weir's own lanes are changed: another client's queue may be called x_default.
                queue = coalesce((
                    SELECT s.name || '_' || coalesce(plan.lane, 'default') FROM weir_services s
                    WHERE j.queue IN (s.name || '_priority', s.name || '_default')), j.queue)
            WHERE j.id = ANY (oldest) AND (j.state IN ('pending', 'scheduled')) IS TRUE
            RETURNING j.id, j.queue
        LOOP
            given := given || woken.id;
            IF woken.queue <> ALL (told) THEN
                told := told || woken.queue;
                -- Where jobs have waited for a while, every worker is busy and claims the next one when it is done: nobody
                -- has to be woken, and a notification would wake them all. Of few jobs the last may be claimed just now.
                IF NOT EXISTS (
                    SELECT FROM river_job j
                    WHERE j.state = 'available' AND j.queue = woken.queue AND j.priority = 1
                      AND j.scheduled_at < clock_timestamp() - interval '100 milliseconds'
                    OFFSET 20
                ) THEN
                    PERFORM pg_notify(river_channel('river_insert'), json_build_object('queue', woken.queue)::text);
                END IF;
            END IF;
        END LOOP;
        UPDATE quota_reservations r SET admitted_at = clock_timestamp(), parked_at = NULL WHERE r.job_id = ANY (given);
    END IF;
    UPDATE holders k
    SET slots_in_use = k.slots_in_use - freed + cardinality(given),
        parked = k.parked - unparked - cardinality(given),
        granted_slots = CASE WHEN given <> '{}' THEN slots ELSE k.granted_slots END
    WHERE k.holder = of_holder AND k.event_type = meter AND (freed, unparked, cardinality(given)) <> (0, 0, 0);
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
    PERFORM give_on(r.holder, r.event_type, (r.admitted_at IS NOT NULL)::int, (r.parked_at IS NOT NULL)::int);
    RETURN charged;
END
$$;
