-- Starts attempts at the next available jobs of these queues, by priority, time and id, as River's client does. Skips
-- jobs that other workers are claiming, paused queues, kinds that are not listed, and expired jobs.
--
-- | parameter | |
-- |---|---|
-- | `worker` | the process that works the jobs |
-- | `only_with_slot` | whether to leave jobs that name a user and have no slot, unless slots are not counted |
-- | `queues`, `most`, `since` | the queues, and for each the maximum number of jobs, and the start in its order: of the first priority, only jobs that start at this time or later. Null: all jobs |
-- | `lend` | for each queue, the number of jobs up to which parked jobs start if too few have a slot. Null: no parked jobs |
--
-- A row that has only a queue shows that more parked jobs may start there on lent workers.
--
-- Returns the jobs with their accounts, slots and quotas. A job that was settled and then made available again has an
-- account and no reservation. A job of another program has neither. These are read after the claim: from then on, no
-- other transaction changes them. `key` identifies the job outside of this database. After a failover or a restore,
-- several jobs may have the same id. They differ in their creation time, and those of two users in their arguments.
-- Cost: one scan of River's index of available jobs for each queue, and for each job one update and two look-ups. With
-- `lend`, one look-up, and as lend_jobs() for each queue with too few jobs.
-- Callers: weir_claim; ledger/src/attempts/claims.rs.
CREATE OR REPLACE FUNCTION claim_jobs(worker text, kinds text[], only_with_slot boolean, queues text[], most int[],
                                      since timestamptz[], lend int[] DEFAULT NULL)
RETURNS TABLE (job_id bigint, attempt smallint, max_attempts smallint, claim text, claims int, errors int, last_error_at text,
               kind text, queue text, priority smallint, args text, request_id text, traceparent text,
               created_at timestamptz, scheduled_at timestamptz, attempted_at timestamptz,
               holder uuid, user_id uuid, meter usage_event_type, has_reservation boolean, has_slot boolean, key uuid, is_lent boolean)
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
    claimed bigint[];
    claimed_from text[];
    one record;
    lent record;
    all_lent bigint[] := '{}';
    unlent text[];
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT p.id
        FROM unnest(claim_jobs.queues, claim_jobs.most, claim_jobs.since) AS q (queue, most, since)
        CROSS JOIN LATERAL (
            SELECT j.id
            FROM river_job j
            -- The comparison of rows has the order of River's index. 1 is River's first priority.
            WHERE j.state = 'available' AND j.queue = q.queue AND j.scheduled_at <= now()
              AND (j.priority, j.scheduled_at, j.id) >= (1::smallint, coalesce(q.since, '-infinity'), 0::bigint)
              -- No later attempt has a number.
              AND j.kind = ANY (claim_jobs.kinds) AND j.attempt < 32767
              AND NOT (j.metadata ? 'weir:expires_in'
                       AND EXISTS (SELECT FROM weir_jobs r WHERE r.job_id = j.id AND r.start_by <= now()))
              AND (NOT only_with_slot
                   OR EXISTS (SELECT FROM weir_jobs r WHERE r.job_id = j.id AND r.admitted_at IS NOT NULL)
                   OR (jsonb_typeof(j.args -> 'user_id') IS DISTINCT FROM 'string' OR j.args ->> 'user_id' = '')
                      AND NOT EXISTS (SELECT FROM quota_reservations r WHERE r.job_id = j.id)
                   OR NOT (SELECT s.counts_slots FROM weir_settings s))
            ORDER BY j.priority, j.scheduled_at, j.id
            LIMIT q.most
            FOR UPDATE SKIP LOCKED
        ) p
        WHERE NOT EXISTS (SELECT 1 FROM river_queue r WHERE r.name IN (q.queue, '*') AND r.paused_at IS NOT NULL)
    ), started AS (
        UPDATE river_job j
        SET state = 'running', attempt = j.attempt + 1, attempted_at = now(),
            attempted_by = (coalesce(j.attempted_by, '{}'))[greatest(coalesce(cardinality(j.attempted_by), 0) - 98, 1):]
                || claim_jobs.worker
        FROM picked p
        WHERE j.id = p.id
        RETURNING j.id, j.queue
    )
    SELECT array_agg(s.id), array_agg(s.queue) INTO claimed, claimed_from FROM started s;
    IF lend IS NOT NULL AND EXISTS (SELECT FROM waiting_accounts) THEN
        FOR one IN
            SELECT u.queue, u.lend - c.n AS n
            FROM unnest(claim_jobs.queues, claim_jobs.most, claim_jobs.lend) AS u (queue, most, lend)
            CROSS JOIN LATERAL (SELECT coalesce(cardinality(array_positions(claimed_from, u.queue)), 0) AS n) c
            WHERE u.most > c.n
              AND NOT EXISTS (SELECT 1 FROM river_queue r WHERE r.name IN (u.queue, '*') AND r.paused_at IS NOT NULL)
        LOOP
            SELECT * INTO lent FROM lend_jobs(worker, kinds, one.queue, one.n);
            all_lent := all_lent || lent.jobs;
            IF lent.has_more THEN
                unlent := unlent || one.queue;
            END IF;
        END LOOP;
        claimed := claimed || all_lent;
    END IF;
    IF claimed IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT j.id, j.attempt, j.max_attempts, claim_of(j.attempt, j.attempted_by), cardinality(j.attempted_by),
           coalesce(cardinality(j.errors), 0), j.errors[cardinality(j.errors)] ->> 'at', j.kind, j.queue, j.priority,
           j.args::text, j.metadata ->> 'weir:request_id', j.metadata ->> 'weir:traceparent',
           -- Other programs may write times that Rust cannot read, such as -infinity.
           least(greatest(j.created_at, '0001-01-01Z'), '9999-01-01Z'),
           least(greatest(j.scheduled_at, '0001-01-01Z'), '9999-01-01Z'), j.attempted_at,
           r.holder, r.user_id, r.event_type, r.job_id IS NOT NULL AND r.ended_at IS NULL, r.admitted_at IS NOT NULL,
           left(encode(sha256(convert_to(concat_ws('/', t.address_namespace, j.id, extract(epoch FROM j.created_at), j.kind,
                                                   j.args), 'UTF8')), 'hex'), 32)::uuid,
           j.id = ANY (all_lent)
    FROM unnest(claimed) WITH ORDINALITY AS c (id, n)
    CROSS JOIN LATERAL (SELECT * FROM river_job k WHERE k.id = c.id OFFSET 0) j
    LEFT JOIN LATERAL (SELECT * FROM weir_jobs q WHERE q.job_id = c.id OFFSET 0) r ON true
    CROSS JOIN weir_settings t
    ORDER BY j.priority, j.scheduled_at, j.id;
    IF unlent IS NOT NULL THEN
        FOREACH queue IN ARRAY unlent LOOP
            RETURN NEXT;
        END LOOP;
    END IF;
END
$$;
