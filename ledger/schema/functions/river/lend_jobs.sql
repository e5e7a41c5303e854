-- Lends idle workers: starts attempts at parked jobs of accounts that have no free slot, at most `most`. The only body of
-- this rule. Each worker goes to the account with the fewest jobs at once for its slots, among those whose burst allows
-- more. A job with a slot never waits for a lent one, because a lent job starts in the claim that found no job with a slot.
--
-- The job gets a slot, as by a promotion. So no other row says that it was lent: the account has more slots in use than
-- its plan gives, and a settlement then promotes none of its jobs. `weir:lent` in the job's metadata is the number of the
-- attempt, for people who look at it.
--
-- Skips accounts and jobs that another transaction has locked. `has_more`: whether a later call may find more jobs. With
-- no worker to lend, whether accounts wait.
-- Errors: none. If it fails, because of another program's trigger, it warns and lends nothing: a claim has other jobs to
-- start.
-- Cost: two look-ups. If accounts wait, that of accounts_to_lend_to(). For each account that gets a worker a lock, a write,
-- and look-ups of at most its 100 oldest waiting jobs; for each job two writes.
-- Callers: claim_jobs.
CREATE OR REPLACE FUNCTION lend_jobs(worker text, kinds text[], of_queue text, most int,
                                     OUT jobs bigint[], OUT has_more boolean)
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
    service text;
    meter usage_event_type;
    of_lane text;
    given_to uuid[];
    shares int[];
    bursts int[];
    -- The locked ones of these accounts.
    of_holders uuid[];
    of_shares int[];
    of_bursts int[];
    lent bigint[];
    lent_to uuid[];
    fell_short uuid[] := '{}';
    -- The workers that are not given yet.
    remaining int := most;
    are_locked boolean := false;
BEGIN
    jobs := '{}';
    has_more := false;
    SELECT s.name, s.event_type, substr(of_queue, length(s.name) + 2) INTO service, meter, of_lane
    FROM weir_services s
    WHERE of_queue IN (s.name || '_priority', s.name || '_default')
      AND EXISTS (SELECT FROM waiting_accounts w WHERE w.event_type = s.event_type);
    IF NOT FOUND THEN
        RETURN;
    ELSIF most <= 0 THEN
        has_more := true;
        RETURN;
    END IF;
    FOR round IN 1 .. 8 LOOP
        WITH accounts AS MATERIALIZED (
            SELECT * FROM accounts_to_lend_to(meter, of_lane) a WHERE a.holder <> ALL (fell_short)
        ), given AS (
            SELECT a.holder, a.burst
            FROM accounts a
            CROSS JOIN LATERAL generate_series(a.slots_in_use, least(a.burst, a.slots_in_use + least(a.parked, most)) - 1)
                AS job (n)
            -- An idle worker's last job may not be settled yet. Then two accounts seem to have the same share. It was a job
            -- of each with a probability in proportion to its slots, and so the worker is given.
            ORDER BY job.n::float8 / a.slots, -ln(1 - random()) / a.slots
            LIMIT remaining
        )
        SELECT array_agg(g.holder), array_agg(g.n), array_agg(g.burst),
               (SELECT sum(least(a.parked, a.burst - a.slots_in_use)) > remaining FROM accounts a)
        INTO given_to, shares, bursts, has_more
        FROM (SELECT w.holder, w.burst, count(*)::int AS n FROM given w GROUP BY w.holder, w.burst) g;
        EXIT WHEN given_to IS NULL;
        SELECT array_agg(h.holder), array_agg(least(c.n, h.parked, c.burst - h.slots_in_use)), array_agg(c.burst),
               are_locked OR count(*) < cardinality(given_to)
        INTO of_holders, of_shares, of_bursts, are_locked
        FROM lock_accounts(given_to, array_fill(meter, ARRAY[cardinality(given_to)]), true) h
        JOIN unnest(given_to, shares, bursts) AS c (holder, n, burst) ON c.holder = h.holder;
        WITH accounts AS MATERIALIZED (
            SELECT u.holder, u.n, u.burst, h.place, (
                SELECT r.job_id FROM quota_reservations r
                WHERE r.parked_at IS NOT NULL
                  AND (r.holder, r.event_type, r.job_id) >= (u.holder, meter, h.parked_from)
                  AND (r.holder, r.event_type, r.job_id) <= (u.holder, meter, 9223372036854775807)
                ORDER BY r.holder, r.event_type, r.job_id
                LIMIT 1) AS first_parked
            FROM unnest(of_holders, of_shares, of_bursts) AS u (holder, n, burst)
            CROSS JOIN LATERAL (
                SELECT k.ctid AS place, k.parked_from FROM holders k WHERE k.holder = u.holder AND k.event_type = meter
                ORDER BY k.generation DESC LIMIT 1
            ) h
            WHERE u.n > 0
        ), picked AS MATERIALIZED (
            SELECT a.holder, a.place, a.burst, a.first_parked, p.job_id
            FROM accounts a
            CROSS JOIN LATERAL (
                SELECT r.job_id
                FROM (
                    -- As in settle_many().
                    SELECT q.job_id FROM quota_reservations q
                    WHERE q.parked_at IS NOT NULL
                      AND (q.holder, q.event_type, q.job_id) >= (a.holder, meter, a.first_parked)
                      AND (q.holder, q.event_type, q.job_id) <= (a.holder, meter, 9223372036854775807)
                    ORDER BY q.holder, q.event_type, q.job_id
                    LIMIT 100
                ) r
                CROSS JOIN LATERAL (
                    SELECT FROM river_job j
                    WHERE j.id = r.job_id AND (j.state = 'scheduled' OR j.state = 'pending' AND j.scheduled_at <= now()) IS TRUE
                      AND j.queue IN (service || '_priority', service || '_default')
                      AND j.kind = ANY (kinds) AND j.attempt < 32767
                      AND NOT (j.metadata ? 'weir:expires_in'
                               AND EXISTS (SELECT FROM quota_reservations x WHERE x.job_id = j.id AND x.start_by <= now()))
                    OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED
                ) j
                LIMIT a.n
            ) p
        ), admitted AS (
            UPDATE quota_reservations r
            SET admitted_at = clock_timestamp(), parked_at = NULL
            WHERE r.job_id = ANY (ARRAY(SELECT p.job_id FROM picked p))
        ), counted AS (
            UPDATE holders h
            SET slots_in_use = h.slots_in_use + d.n, parked = h.parked - d.n, granted_slots = d.burst,
                parked_from = d.first_parked, changes = h.changes + 1
            FROM (SELECT p.place, p.burst, p.first_parked, count(*)::int AS n FROM picked p GROUP BY 1, 2, 3) d
            WHERE h.ctid = d.place
        )
        SELECT array_agg(p.job_id), array_agg(p.holder) INTO lent, lent_to FROM picked p;
        jobs := jobs || coalesce(lent, '{}');
        -- The next round gives the workers of accounts whose jobs cannot start to the others.
        SELECT fell_short || coalesce(array_agg(u.holder) FILTER (WHERE u.n > c.n), '{}'),
               coalesce(sum(u.n - c.n) FILTER (WHERE u.holder = ANY (of_holders)), 0)
        INTO fell_short, remaining
        FROM unnest(given_to, shares) AS u (holder, n)
        CROSS JOIN LATERAL (SELECT coalesce(cardinality(array_positions(lent_to, u.holder)), 0) AS n) c;
        EXIT WHEN remaining = 0;
    END LOOP;
    -- accounts_to_lend_to() reads at most 128 accounts. If none of them may use a worker, others may.
    has_more := coalesce(has_more, false) OR are_locked
        OR jobs = '{}' AND EXISTS (SELECT FROM waiting_accounts w WHERE w.event_type = meter OFFSET 128);
    -- Triggers of other programs run here.
    UPDATE river_job j
    SET state = 'running', queue = of_queue, attempt = j.attempt + 1, scheduled_at = now(), attempted_at = now(),
        attempted_by = (coalesce(j.attempted_by, '{}'))[greatest(coalesce(cardinality(j.attempted_by), 0) - 98, 1):] || worker,
        metadata = j.metadata || jsonb_build_object('weir:lent', j.attempt + 1)
    WHERE j.id = ANY (jobs);
EXCEPTION WHEN OTHERS THEN
    jobs := '{}';
    has_more := false;
    RAISE WARNING 'no idle worker of the queue % was lent: %', of_queue, SQLERRM;
END
$$;
