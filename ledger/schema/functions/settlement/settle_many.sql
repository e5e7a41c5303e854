-- Settles jobs, and gives freed slots to the oldest parked jobs of the same holders. The only body of this rule.
--
-- An attempt with a number has succeeded: its job is completed, if it is still the job's current attempt. Without a number,
-- the job may have ended elsewhere, been deleted, or failed: if it ended, its reservation ends too; if it waits for a
-- retry, it keeps its quota and frees its slot. A completed job is charged once, at most what it reserved.
--
-- | parameter | |
-- |---|---|
-- | `skips_locked`, `avoid` | does not wait for accounts that another transaction has locked, or for these holders. If a job needs one of them, writes nothing and returns a row `locked` for each such job |
-- | `more_holders`, `more_meters` | other accounts, pairwise, whose parked jobs get free slots. Locked ones are skipped with `skips_locked` |
--
-- | outcome | |
-- |---|---|
-- | `done` | with the charge and, if a reservation ended, its account, amount and the job's last state |
-- | `fenced_out` | the attempt is not the job's current one |
-- | `locked` | with the holder |
-- | `promoted` | a parked job that is available now, and its queue. Workers are not notified |
-- | `lendable` | a queue whose idle workers may be lent to one of the accounts (see lend_jobs) |
--
-- At most 1000 jobs are promoted in one call, and the next one continues: lifting a limit may free all of them at once.
-- They become available at the tail of the lane of their holder's current plan. The accounts are written before
-- river_job, because a trigger of another program there may submit or settle jobs itself. Reservations are deleted last:
-- the trigger that emits their jobs' ends reads river_job.
-- Errors: 22003 and 23514 when counters are wrong.
-- Cost: for each account one lock and one write, for each job two look-ups and three writes, for each promoted job two
-- look-ups and two writes. It does not grow with the number of parked jobs. Jobs promoted earlier cost nothing, even
-- while a session holds an old snapshot (see holders.parked_from).
-- Callers: settle_one, weir_release; ledger/src/settlement/statements.rs.
CREATE OR REPLACE FUNCTION settle_many(attempts ended_attempt[], skips_locked boolean, avoid uuid[], more_holders uuid[],
                                       more_meters usage_event_type[])
RETURNS TABLE (outcome text, job_id bigint, charged bigint, holder uuid, user_id uuid, meter text, reserved bigint,
               state text, request_id text, queue text, attempt smallint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET enable_incremental_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    max_promoted CONSTANT int := 1000;
    -- The locked accounts, in order.
    a_holders uuid[];
    a_meters text[];
    a_places tid[];
    a_users uuid[];
    a_slots int[];
    a_parked int[];
    a_months timestamptz[];
    a_limits int[];
    a_bursts int[];
    a_lanes text[];
    have_parked boolean;
    s settlement[];
    n_charged int;
    end_elsewhere boolean;
    have_large_outputs boolean;
    have_draws boolean;
    have_windows boolean;
    -- The changes of accounts, in order.
    c_holders uuid[];
    c_meters text[];
    c_months timestamptz[];
    c_freed int[];
    c_unparked int[];
    c_reserved bigint[];
    c_charged bigint[];
    c_returned bigint[];
    c int := 1;
    freed int;
    unparked int;
    -- In the month of the account's row.
    month_reserved bigint;
    month_charged bigint;
    month_returned bigint;
    have_other_months boolean := false;
    n int;
    promotes int := 0;
    -- The accounts that idle workers may be lent to.
    l_holders uuid[];
    l_meters text[];
    l_lanes text[];
    -- The changed accounts.
    h_places tid[] := '{}';
    h_holders uuid[] := '{}';
    h_meters text[] := '{}';
    h_freed int[] := '{}';
    h_unparked int[] := '{}';
    h_reserved bigint[] := '{}';
    h_charged bigint[] := '{}';
    h_returned bigint[] := '{}';
    h_promote int[] := '{}';
    h_limits int[] := '{}';
    h_lanes text[] := '{}';
    p_jobs bigint[];
    p_lanes text[];
    p_holders uuid[];
    p_users uuid[];
    p_meters text[];
BEGIN
    -- The order and the limit find the live version of a row (see ledger/schema/tables/holders.sql).
    IF skips_locked THEN
        SELECT array_agg(w.holder), array_agg(w.meter::text), array_agg(h.place), array_agg(h.user_id),
               array_agg(h.slots_in_use), array_agg(h.parked), array_agg(h.period_start), bool_or(h.parked > 0)
        INTO a_holders, a_meters, a_places, a_users, a_slots, a_parked, a_months, have_parked
        FROM (
            SELECT r.holder, r.event_type AS meter
            FROM unnest(attempts) e
            CROSS JOIN LATERAL (
                SELECT q.holder, q.event_type FROM quota_reservations q WHERE q.job_id = e.job_id OFFSET 0
            ) r
            WHERE r.holder <> ALL (avoid)
            UNION
            SELECT * FROM unnest(more_holders, more_meters)
            ORDER BY 1, 2
        ) w
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place, k.* FROM holders k WHERE k.holder = w.holder AND k.event_type = w.meter
            ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
        ) h;
    ELSE
        SELECT array_agg(w.holder), array_agg(w.meter::text), array_agg(h.place), array_agg(h.user_id),
               array_agg(h.slots_in_use), array_agg(h.parked), array_agg(h.period_start), bool_or(h.parked > 0)
        INTO a_holders, a_meters, a_places, a_users, a_slots, a_parked, a_months, have_parked
        FROM (
            SELECT r.holder, r.event_type AS meter
            FROM unnest(attempts) e
            CROSS JOIN LATERAL (
                SELECT q.holder, q.event_type FROM quota_reservations q WHERE q.job_id = e.job_id OFFSET 0
            ) r
            WHERE r.holder <> ALL (avoid)
            UNION
            SELECT * FROM unnest(more_holders, more_meters)
            ORDER BY 1, 2
        ) w
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place, k.* FROM holders k WHERE k.holder = w.holder AND k.event_type = w.meter
            ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE
        ) h;
    END IF;
    IF have_parked THEN
        SELECT array_agg(CASE WHEN h.parked > 0 THEN slots_in_force(h.user_id, p.tier, p.slots, p.own_slots) END),
               array_agg(p.burst),
               -- A client address has no plan.
               array_agg(coalesce(p.lane, 'default'))
        INTO a_limits, a_bursts, a_lanes
        FROM unnest(a_users, a_meters, a_parked) AS h (user_id, meter, parked)
        LEFT JOIN LATERAL plan_of(h.user_id, h.meter, now()) p ON h.user_id IS NOT NULL AND h.parked > 0;
    END IF;

    -- The jobs' rows are locked and read by the current clock: a retry that falls due at the same time is either claimed
    -- before this and keeps its slot, or claimed after it and requests one.
    SELECT array_agg(u.one), count(*) FILTER (WHERE (u.one).charged > 0),
           bool_or((u.one).ends AND NOT (u.one).completes),
           bool_or((u.one).completes AND is_large_output((u.one).output)), bool_or((u.one).ends AND (u.one).from_grants > 0),
           bool_or((u.one).windows <> 0)
    INTO s, n_charged, end_elsewhere, have_large_outputs, have_draws,
         have_windows
    FROM (
        SELECT ROW(
                   e.job_id,
                   CASE WHEN e.attempt IS NOT NULL AND NOT c.completes THEN 'fenced_out' ELSE 'done' END,
                   c.ends AND r.job_id IS NOT NULL, c.yields, c.completes,
                   CASE WHEN c.completes THEN 'completed' ELSE j.state::text END, j.request_id, e.used, e.output,
                   j.scheduled_at - retry_lead(), r.holder, r.event_type, r.user_id, r.admitted_at IS NOT NULL,
                   r.parked_at IS NOT NULL, r.period_start, r.windows, r.created_at, r.reserved_amount, r.from_grants,
                   r.overage,
                   CASE WHEN (c.completes OR c.ends AND j.state = 'completed')
                             AND r.user_id IS NOT NULL AND r.period_start IS NOT NULL
                             -- A job is charged once.
                             AND NOT EXISTS (SELECT FROM usage_events g WHERE g.job_id = e.job_id)
                        THEN charge_of(r.reserved_amount, CASE WHEN c.completes THEN e.used ELSE j.used END)
                        ELSE 0 END)::settlement AS one
        FROM (
            SELECT DISTINCT ON (u.job_id) u.* FROM unnest(attempts) u ORDER BY u.job_id, u.attempt DESC NULLS LAST
        ) e
        LEFT JOIN LATERAL (
            SELECT j.state, j.attempt, j.created_at, j.finalized_at, j.scheduled_at, used_of(j.metadata) AS used,
                   j.metadata ->> 'weir:request_id' AS request_id
            FROM river_job j WHERE j.id = e.job_id OFFSET 0
            FOR NO KEY UPDATE
        ) j ON true
        LEFT JOIN LATERAL (SELECT * FROM quota_reservations q WHERE q.job_id = e.job_id OFFSET 0) r ON true
        CROSS JOIN LATERAL (
            SELECT coalesce(j.attempt = e.attempt AND j.state = 'running'
                            AND (e.created_at IS NULL OR j.created_at = e.created_at), false) AS completes,
                   coalesce(e.attempt IS NULL AND r.admitted_at IS NOT NULL
                            AND (j.state IN ('retryable', 'scheduled')
                                 OR j.state = 'available' AND j.scheduled_at > clock_timestamp()), false) AS yields
            OFFSET 0
        ) d
        CROSS JOIN LATERAL (
            SELECT d.completes, d.yields,
                   d.completes OR e.attempt IS NULL AND (j.state IS NULL OR j.finalized_at IS NOT NULL) AS ends
        ) c
        OFFSET 0
    ) u;
    SELECT array_agg(d.holder), array_agg(d.meter), array_agg(d.month), array_agg(d.freed), array_agg(d.unparked),
           array_agg(d.reserved), array_agg(d.charged), array_agg(d.returned)
    INTO c_holders, c_meters, c_months, c_freed, c_unparked, c_reserved, c_charged, c_returned
    FROM (
        SELECT u.holder, u.meter::text AS meter, u.period_start AS month, sum(u.held_slot::int)::int AS freed,
               sum(u.was_parked::int)::int AS unparked,
               coalesce(sum(u.reserved) FILTER (WHERE u.ends), 0)::bigint AS reserved,
               coalesce(sum(u.charged) FILTER (WHERE u.ends), 0)::bigint AS charged,
               coalesce(sum(u.from_grants - charged_to_grants(u.reserved, u.overage, u.from_grants, u.charged))
                   FILTER (WHERE u.ends AND u.from_grants > 0), 0)::bigint AS returned
        FROM unnest(s) u WHERE u.ends OR u.yields
        GROUP BY u.holder, u.meter, u.period_start ORDER BY u.holder, u.meter, u.period_start
    ) d;
    FOR i IN 1 .. coalesce(cardinality(a_holders), 0) LOOP
        freed := 0;
        unparked := 0;
        month_reserved := 0;
        month_charged := 0;
        month_returned := 0;
        WHILE c_holders[c] = a_holders[i] AND c_meters[c] = a_meters[i] LOOP
            freed := freed + c_freed[c];
            unparked := unparked + c_unparked[c];
            IF c_months[c] = a_months[i] THEN
                month_reserved := c_reserved[c];
                month_charged := c_charged[c];
                month_returned := c_returned[c];
            ELSE
                have_other_months := have_other_months OR c_reserved[c] > 0;
            END IF;
            c := c + 1;
        END LOOP;
        n := 0;
        IF a_parked[i] - unparked > 0 THEN
            -- None while more slots are in use than a lowered limit allows.
            n := greatest(least(a_parked[i] - unparked, a_limits[i]::bigint - (a_slots[i] - freed), max_promoted - promotes), 0);
        END IF;
        IF a_parked[i] - unparked - n > 0 AND a_bursts[i] > greatest(a_limits[i], a_slots[i] - freed + n) THEN
            l_holders := l_holders || a_holders[i];
            l_meters := l_meters || a_meters[i];
            l_lanes := l_lanes || a_lanes[i];
        END IF;
        IF freed <> 0 OR unparked <> 0 OR n > 0 OR month_reserved > 0 THEN
            promotes := promotes + n;
            h_places := h_places || a_places[i];
            h_holders := h_holders || a_holders[i];
            h_meters := h_meters || a_meters[i];
            h_freed := h_freed || freed;
            h_unparked := h_unparked || unparked;
            h_reserved := h_reserved || month_reserved;
            h_charged := h_charged || month_charged;
            h_returned := h_returned || month_returned;
            h_promote := h_promote || n;
            h_limits := h_limits || a_limits[i];
            h_lanes := h_lanes || a_lanes[i];
        END IF;
    END LOOP;
    IF c <= cardinality(c_holders) THEN
        RETURN QUERY
        SELECT 'locked', u.job_id, NULL::bigint, u.holder, NULL::uuid, u.meter::text, NULL::bigint, NULL, NULL, NULL,
               NULL::smallint
        FROM unnest(s) u
        WHERE (u.ends OR u.yields)
          AND NOT EXISTS (SELECT FROM unnest(a_holders, a_meters) AS l (holder, meter)
                          WHERE l.holder = u.holder AND l.meter = u.meter);
        RETURN;
    END IF;

    IF promotes > 0 THEN
        -- The comparisons of rows and the orders have the columns of weir_jobs_parked. With equality, the planner
        -- may walk over all holders' reservations by the primary key.
        WITH wanted AS MATERIALIZED (
            SELECT w.*, h.place, h.parked_from, h.user_id,
                   CASE WHEN w.n > 0 THEN (
                       SELECT r.job_id FROM quota_reservations r
                       WHERE r.parked_at IS NOT NULL
                         AND (r.holder, r.event_type, r.job_id) >= (w.holder, w.meter, h.parked_from)
                         AND (r.holder, r.event_type, r.job_id) <= (w.holder, w.meter, 9223372036854775807)
                       ORDER BY r.holder, r.event_type, r.job_id
                       LIMIT 1) END AS first_parked
            FROM unnest(h_holders, h_meters::usage_event_type[], h_freed, h_unparked, h_promote, h_limits, h_lanes,
                        h_reserved, h_charged, h_returned)
                AS w (holder, meter, freed, unparked, n, slot_limit, lane, reserved, charged, returned)
            CROSS JOIN LATERAL (
                SELECT k.ctid AS place, k.parked_from, k.user_id FROM holders k
                WHERE k.holder = w.holder AND k.event_type = w.meter
                ORDER BY k.generation DESC LIMIT 1
            ) h
        ), picked AS MATERIALIZED (
            SELECT w.holder, w.user_id, w.meter, w.place, w.lane, p.job_id
            FROM wanted w
            CROSS JOIN LATERAL (
                SELECT r.job_id
                FROM quota_reservations r
                CROSS JOIN LATERAL (
                    SELECT FROM river_job j WHERE j.id = r.job_id AND (j.state IN ('pending', 'scheduled')) IS TRUE
                    OFFSET 0 FOR NO KEY UPDATE
                ) j
                WHERE r.parked_at IS NOT NULL
                  AND (r.holder, r.event_type, r.job_id) >= (w.holder, w.meter, w.first_parked)
                  AND (r.holder, r.event_type, r.job_id) <= (w.holder, w.meter, 9223372036854775807)
                ORDER BY r.holder, r.event_type, r.job_id
                LIMIT w.n
            ) p
            WHERE w.n > 0
        ), admitted AS (
            UPDATE quota_reservations r
            SET admitted_at = clock_timestamp(), parked_at = NULL
            -- An array, so that the planner does not scan a table that was nearly empty at the last ANALYZE.
            WHERE r.job_id = ANY (ARRAY(SELECT p.job_id FROM picked p))
        ), counted AS (
            UPDATE holders h
            SET slots_in_use = h.slots_in_use - d.freed + d.n,
                parked = h.parked - d.unparked - d.n,
                reserved = h.reserved - d.reserved,
                used = h.used + d.charged,
                from_grants = h.from_grants - d.returned,
                granted_slots = CASE WHEN d.n > 0 THEN d.slot_limit ELSE h.granted_slots END,
                -- The next promotion starts at the job that was the first. If too few jobs were found, it looks at all
                -- parked jobs once, in case another program left a wrong start.
                parked_from = CASE WHEN d.n < d.wanted AND d.parked_from > 0 THEN 0
                                   ELSE coalesce(d.first_parked, h.parked_from) END,
                changes = h.changes + 1
            FROM (
                SELECT u.place, sum(u.freed) AS freed, sum(u.unparked) AS unparked, sum(u.n) AS n, sum(u.wanted) AS wanted,
                       sum(u.reserved) AS reserved, sum(u.charged) AS charged, sum(u.returned) AS returned,
                       max(u.slot_limit) AS slot_limit, max(u.parked_from) AS parked_from, max(u.first_parked) AS first_parked
                FROM (
                    SELECT w.place, w.freed, w.unparked, 0 AS n, w.n AS wanted, w.reserved, w.charged, w.returned,
                           w.slot_limit, w.parked_from, w.first_parked
                    FROM wanted w
                    UNION ALL
                    SELECT p.place, 0, 0, 1, 0, 0, 0, 0, 0, NULL, NULL FROM picked p
                ) u
                GROUP BY u.place
            ) d
            WHERE h.ctid = d.place
        )
        SELECT array_agg(p.job_id), array_agg(p.lane), array_agg(p.holder), array_agg(p.user_id), array_agg(p.meter::text)
        INTO p_jobs, p_lanes, p_holders, p_users, p_meters
        FROM picked p;
    ELSIF cardinality(h_places) > 0 THEN
        -- The rows stay at their places, because they are locked.
        UPDATE holders h
        SET slots_in_use = h.slots_in_use - d.freed, parked = h.parked - d.unparked, reserved = h.reserved - d.reserved,
            used = h.used + d.charged, from_grants = h.from_grants - d.returned, changes = h.changes + 1
        FROM unnest(h_places, h_freed, h_unparked, h_reserved, h_charged, h_returned)
            AS d (place, freed, unparked, reserved, charged, returned)
        WHERE h.ctid = d.place;
    END IF;
    IF end_elsewhere THEN
        -- The attempt is over, so its handler's later reports must not count, even if the job is retried.
        DELETE FROM outstanding_attempts o
        WHERE o.job_id = ANY (ARRAY(SELECT u.job_id FROM unnest(s) u WHERE u.ends AND NOT u.completes));
    END IF;
    IF have_large_outputs THEN
        INSERT INTO job_outputs AS o (job_id, output)
        SELECT u.job_id, u.output FROM unnest(s) u WHERE u.completes AND is_large_output(u.output)
        ON CONFLICT (job_id) DO UPDATE SET output = excluded.output;
    END IF;
    -- Rows are found one by one, and stay at their places (ctid), because they are locked. With outdated statistics, the
    -- planner would join by reading a whole table.
    UPDATE weir_jobs b
    SET ended_at = CASE WHEN d.ends THEN clock_timestamp() END, admitted_at = NULL, parked_at = NULL,
        -- After a failed attempt, the job asks for a slot again shortly before it is due.
        due_at = CASE WHEN NOT d.ends THEN d.due_at END,
        start_by = CASE WHEN NOT d.ends THEN b.start_by END, progress = CASE WHEN NOT d.ends THEN b.progress END,
        -- Without a charge, nothing else shows that the job has ended if its row is deleted soon.
        deleted_at = CASE WHEN d.ends AND d.charged = 0 THEN now() ELSE b.deleted_at END
    FROM (
        SELECT u.ends, u.due_at, u.charged, (SELECT q.ctid FROM weir_jobs q WHERE q.job_id = u.job_id) AS place
        FROM unnest(s) u WHERE u.ends OR u.yields
    ) d
    WHERE b.ctid = d.place;
    IF n_charged > 0 THEN
        INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start, windows, reserved_at, overage,
                                  from_grants)
        SELECT u.user_id, u.meter, u.charged, u.job_id, u.period_start, u.windows,
               CASE WHEN u.windows <> 0 THEN u.reserved_at END,
               -- Overage is charged last.
               least(greatest(u.charged - (u.reserved - u.overage), 0), u.overage),
               charged_to_grants(u.reserved, u.overage, u.from_grants, u.charged)
        FROM unnest(s) u
        WHERE u.charged > 0;
    END IF;
    IF have_windows OR have_other_months THEN
        UPDATE window_balances b
        SET reserved = b.reserved - d.reserved, used = b.used + d.charged, from_grants = b.from_grants - d.returned,
            changes = b.changes + 1
        FROM settled_windows(s) d
        WHERE b.ctid = d.place;
    END IF;
    IF have_draws THEN
        PERFORM settle_draws(array_agg(u.job_id),
                             array_agg(charged_to_grants(u.reserved, u.overage, u.from_grants, u.charged)))
        FROM unnest(s) u WHERE u.ends AND u.from_grants > 0;
    END IF;

    IF l_holders IS NOT NULL THEN
        INSERT INTO waiting_accounts (holder, event_type) SELECT * FROM unnest(l_holders, l_meters)
        ON CONFLICT DO NOTHING;
    END IF;

    -- Triggers of other programs run here.
    -- As in River's JobCompleteTx.
    UPDATE river_job j
    SET state = 'completed', finalized_at = clock_timestamp(),
        metadata = j.metadata || CASE WHEN d.used IS NOT NULL THEN jsonb_build_object('weir:used', d.used) ELSE '{}' END
            || CASE WHEN d.output <> 'null' AND NOT is_large_output(d.output) THEN jsonb_build_object('output', d.output)
                    ELSE '{}' END,
        attempted_at = attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at)
    FROM (
        SELECT u.used, u.output, (SELECT k.ctid FROM river_job k WHERE k.id = u.job_id) AS place
        FROM unnest(s) u WHERE u.completes
    ) d
    WHERE j.ctid = d.place;
    RETURN QUERY
    SELECT u.outcome, u.job_id, u.charged, u.holder, u.user_id, u.meter::text, u.reserved,
           CASE WHEN u.ends THEN coalesce(u.state, 'deleted') END, u.request_id, NULL::text, NULL::smallint
    FROM unnest(s) u;
    IF p_jobs IS NOT NULL THEN
        RETURN QUERY
        UPDATE river_job j
        SET state = 'available',
            -- A retry gets its slot shortly before its scheduled time, which does not change.
            scheduled_at = CASE WHEN j.state = 'pending' THEN greatest(j.scheduled_at, clock_timestamp())
                                ELSE clock_timestamp() END,
            queue = queue_in_lane(j.queue, p.lane)
        FROM (
            SELECT u.*, (SELECT k.ctid FROM river_job k WHERE k.id = u.job_id) AS place
            FROM unnest(p_jobs, p_lanes, p_holders, p_users, p_meters) AS u (job_id, lane, holder, user_id, meter)
        ) p
        WHERE j.ctid = p.place
        RETURNING 'promoted', j.id, NULL::bigint, p.holder, p.user_id, p.meter, NULL::bigint, NULL, NULL, j.queue,
                  j.attempt;
    END IF;
    IF l_holders IS NOT NULL THEN
        RETURN QUERY
        SELECT DISTINCT 'lendable', NULL::bigint, NULL::bigint, NULL::uuid, NULL::uuid, NULL, NULL::bigint, NULL, NULL,
               v.name || '_' || u.lane, NULL::smallint
        FROM unnest(l_meters, l_lanes) AS u (meter, lane)
        JOIN weir_services v ON v.event_type = u.meter;
    END IF;
    PERFORM emit_job_ends(ARRAY(SELECT u.job_id FROM unnest(s) u WHERE u.ends));
END
$$;
