-- Gives an existing job without a slot one, or parks it with the other claimable jobs of its user (ADR-10's snooze): a job
-- that another River client inserted, a retry, or a job that an operator made available. Of ten thousand jobs that
-- another client inserted, workers then claim only a handful without effect.
--
-- | parameter | |
-- |---|---|
-- | `of_attempt` | the current attempt. NULL for an unclaimed job: it is parked, and cannot be claimed before it has a slot |
-- | `of_user`, `known_as` | the user, NULL for a client address; the subject of a derived user id |
-- | `backlog_user`, `kinds` | the `user_id` of the job's arguments, and River's kinds of the meter |
--
-- outcome: `admitted`, `parked`, or `fenced_out` if the attempt is no longer current, or an unclaimed job was claimed.
-- A job that was not charged, such as a discarded one that an operator retries, reserves what its submission reserved, as
-- far as the plan and the grants have room.
-- Errors: 40001 when another transaction has just assigned the job to another holder.
-- Cost: some ten look-ups and four writes; two writes for each of at most 1000 other jobs, so that no call is long.
-- Callers: weir_admit, retry_job; ledger/src/reservation/late_admission.rs.
CREATE OR REPLACE FUNCTION admit_late(job bigint, of_attempt smallint, of_holder uuid, of_user uuid, known_as text,
                                      meter usage_event_type, backlog_user text, kinds text[],
                                      OUT outcome text, OUT tier text, OUT new_users bigint, OUT backlog bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    status record;
    a record;
    has_slot boolean;
    amount bigint := 0;
    -- The parts of the amount beyond the plan's month.
    drawn bigint := 0;
    overage bigint := 0;
    -- The user's other jobs to take from their queue, and those of them that are not parked yet.
    waiting bigint[] := '{}';
    parks bigint[] := '{}';
BEGIN
    new_users := 0;
    backlog := 0;
    PERFORM FROM lock_accounts(ARRAY[of_holder], ARRAY[meter], false);
    IF NOT FOUND THEN
        new_users := create_users(ARRAY[of_user], ARRAY[known_as]);
        INSERT INTO holders (holder, event_type, user_id) VALUES (of_holder, meter, of_user)
        ON CONFLICT (holder, event_type) DO NOTHING;
        PERFORM FROM lock_accounts(ARRAY[of_holder], ARRAY[meter], false);
    END IF;
    -- Also locks the job's row, so that it cannot be taken over until the commit. An unclaimed unique job with a key that
    -- does not count while it is pending cannot be parked.
    SELECT r.job_id IS NOT NULL AND r.ended_at IS NULL AS has_reservation, CASE WHEN r.ended_at IS NULL THEN r.holder END AS holder,
           r.admitted_at IS NOT NULL AS admitted, r.parked_at IS NOT NULL AS parked,
           CASE WHEN r.submitted_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = j.id)
                THEN r.reserved_amount END AS submitted
    INTO status
    FROM river_job j
    LEFT JOIN weir_jobs r ON r.job_id = j.id
    WHERE j.id = job
      AND CASE WHEN of_attempt IS NOT NULL THEN j.attempt = of_attempt AND j.state = 'running'
               ELSE j.state = 'available' AND may_be_pending(j.unique_key, j.unique_states) END
    FOR NO KEY UPDATE OF j;
    IF NOT FOUND THEN
        outcome := 'fenced_out';
        RETURN;
    ELSIF status.holder <> of_holder THEN
        RAISE serialization_failure USING
            MESSAGE = format('another transaction has just assigned job %s to another holder', job), HINT = 'retry the transaction';
    ELSIF status.admitted THEN
        outcome := 'admitted';
        RETURN;
    END IF;
    SELECT h.slots_in_use, h.parked, clock.at, c.*,
           coalesce(c.slots_now, CASE WHEN of_user IS NOT NULL THEN raise_no_limits(meter)
                                      ELSE slots_in_force(NULL, NULL, NULL, NULL) END) AS slot_limit
    INTO a
    FROM (SELECT * FROM holders k WHERE k.holder = of_holder AND k.event_type = meter ORDER BY k.generation DESC LIMIT 1) h
    CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
    LEFT JOIN LATERAL account_of(of_user, meter, h.has_grants, clock.at) c ON true;
    tier := a.tier;
    -- The transaction that frees a slot also promotes a parked job. So a slot that is free while jobs are parked is of no
    -- use to them, and a claimed job may take it. If it were parked, nothing would promote it.
    has_slot := (of_attempt IS NOT NULL OR a.parked = 0) AND a.slots_in_use < a.slot_limit;
    outcome := CASE WHEN has_slot THEN 'admitted' ELSE 'parked' END;
    IF of_user IS NOT NULL AND NOT status.has_reservation AND status.submitted > 0 THEN
        -- The quota does not refuse an operator's retry. It reserves what is left.
        amount := greatest(least(status.submitted, a.room, a.capacity), 0);
        overage := coalesce(greatest(amount - greatest(a.plan_left, 0), 0), 0);
        drawn := least(overage, a.granted);
        overage := overage - drawn;
    END IF;
    IF NOT has_slot AND backlog_user IS NOT NULL THEN
        -- Jobs with a slot stay. The holder is locked, so none of them gets one before the commit. A retry that is not due
        -- keeps its delay. A submitted job that had ended, and that an operator retries, holds nothing and reserves for
        -- itself. A unique job stays if its key does not count while it is pending: another job could take the key, and
        -- nothing could wake this one. So does a job of a service that had another meter before: its account for that
        -- meter is not locked.
        SELECT coalesce(array_agg(b.id), '{}'), coalesce(array_agg(b.id) FILTER (WHERE NOT b.is_parked), '{}')
        INTO waiting, parks
        FROM (
            SELECT j.id, r.parked_at IS NOT NULL AS is_parked
            FROM river_job j
            LEFT JOIN LATERAL (SELECT * FROM weir_jobs k WHERE k.job_id = j.id OFFSET 0) r ON true
            WHERE j.state = 'available' AND j.scheduled_at <= now() AND j.kind = ANY (kinds) AND j.id <> job
              AND j.args @> jsonb_build_object('user_id', backlog_user)
              AND may_be_pending(j.unique_key, j.unique_states)
              AND r.admitted_at IS NULL AND (r.ended_at IS NULL OR r.submitted_at IS NULL)
              AND (r.ended_at IS NOT NULL OR coalesce(r.event_type = meter, true))
            LIMIT 1000
            FOR NO KEY UPDATE OF j SKIP LOCKED
        ) b;
        backlog := cardinality(parks);
    END IF;

    -- An existing reservation keeps its amount and windows.
    INSERT INTO weir_jobs AS r (job_id, holder, user_id, event_type, reserved_amount, period_start, expires_at,
                                windows, reserved_at, admitted_at, parked_at, from_grants, overage)
    SELECT d.id, of_holder, of_user, meter, d.amount, a.starts[1], now() + t.reservation_ttl, coalesce(a.counted, 0), a.at,
           CASE WHEN d.has_slot THEN clock_timestamp() END, CASE WHEN NOT d.has_slot THEN clock_timestamp() END,
           d.drawn, d.overage
    FROM (
        SELECT job AS id, amount, has_slot, drawn, overage
        UNION ALL
        SELECT p.id, 0, false, 0, 0 FROM unnest(parks) AS p (id)
    ) d
    CROSS JOIN weir_settings t
    ON CONFLICT (job_id) DO UPDATE
    SET admitted_at = excluded.admitted_at, parked_at = excluded.parked_at, due_at = NULL, ended_at = NULL,
        (reserved_amount, period_start, expires_at, windows, reserved_at, from_grants, overage) = (
            SELECT r.reserved_amount, r.period_start, r.expires_at, r.windows, r.reserved_at, r.from_grants, r.overage
            WHERE r.ended_at IS NULL
            UNION ALL
            SELECT excluded.reserved_amount, excluded.period_start, excluded.expires_at, excluded.windows,
                   excluded.reserved_at, excluded.from_grants, excluded.overage
            WHERE r.ended_at IS NOT NULL);
    IF amount > 0 THEN
        PERFORM reserve_in_windows(of_user, meter, amount, a.spans, a.starts, a.limits, a.ceilings, a.used_in);
    END IF;
    IF drawn > 0 THEN
        PERFORM draw_grants(of_user, meter, job, drawn, a.at, a.starts[1]);
    END IF;
    UPDATE holders h
    SET slots_in_use = h.slots_in_use + has_slot::int,
        parked = h.parked + (NOT has_slot)::int - status.parked::int + admit_late.backlog,
        parked_from = CASE WHEN has_slot THEN h.parked_from
                           ELSE least(h.parked_from, job, (SELECT min(p.id) FROM unnest(parks) AS p (id))) END,
        granted_slots = CASE WHEN has_slot THEN a.slot_limit ELSE h.granted_slots END,
        changes = h.changes + 1
    WHERE h.ctid = (SELECT k.ctid FROM holders k WHERE k.holder = of_holder AND k.event_type = meter
                    ORDER BY k.generation DESC LIMIT 1);
    IF NOT has_slot AND a.burst > a.slot_limit THEN
        INSERT INTO waiting_accounts (holder, event_type) VALUES (of_holder, meter) ON CONFLICT DO NOTHING;
    END IF;
    -- Triggers of other programs run here.
    IF NOT has_slot AND of_attempt IS NULL THEN
        waiting := waiting || job;
    END IF;
    UPDATE river_job j SET state = 'pending' WHERE j.id = ANY (waiting);
END
$$;
