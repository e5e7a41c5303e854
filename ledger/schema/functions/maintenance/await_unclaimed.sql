-- Waits up to $1 milliseconds for jobs that no idle worker has claimed: available ones, because their transactions did
-- not notify workers, and parked ones that lent workers could start. Returns their queues, and for each a mark that
-- changes with the jobs: the first available one, or the changes of the accounts. NULL if there were none.
--
-- It looks every 50 ms, or more rarely while a look is slow, as it is while a session holds an old snapshot. A queue with
-- as many running jobs as workers is left out: its next claim finds the jobs. The workers of other programs are unknown
-- and count as idle.
-- A procedure, because it commits after each look: a function would hold one snapshot all the time. Such a procedure
-- cannot pin its search_path.
-- Cost: one index look-up a look without available jobs. Three for each queue with available jobs, and one row for each
-- of its running jobs. With waiting accounts, accounts_to_lend_to() for each lane with workers to lend.
-- Callers: ledger/src/reconciliation/mod.rs.
CREATE OR REPLACE PROCEDURE await_unclaimed(milliseconds int, INOUT queues text[], INOUT marks bigint[])
LANGUAGE plpgsql
AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() + make_interval(secs => milliseconds / 1000.0);
    began timestamptz;
BEGIN
    IF EXISTS (SELECT FROM waiting_accounts) THEN
        -- Forgets accounts whose jobs no longer wait. Under their locks, so that none is forgotten whose next job is
        -- being parked.
        DELETE FROM waiting_accounts w
        USING (
            SELECT h.holder, h.event_type
            FROM waiting_accounts a
            JOIN holders h ON h.holder = a.holder AND h.event_type = a.event_type
            WHERE h.parked = 0
            ORDER BY 1, 2
            LIMIT 1000
            FOR UPDATE OF h SKIP LOCKED
        ) idle
        WHERE w.holder = idle.holder AND w.event_type = idle.event_type;
        COMMIT;
    END IF;
    LOOP
        began := clock_timestamp();
        -- Nearly all looks find nothing. To start the next statement costs ten times as much as to start this one.
        IF EXISTS (SELECT FROM river_job j WHERE j.state = 'available') THEN
            -- River's index is (state, queue, priority, scheduled_at, id).
            WITH RECURSIVE available AS (
                (SELECT j.queue FROM river_job j WHERE j.state = 'available' ORDER BY j.queue LIMIT 1)
                UNION ALL
                SELECT (SELECT j.queue FROM river_job j WHERE j.state = 'available' AND j.queue > a.queue
                        ORDER BY j.queue LIMIT 1)
                FROM available a WHERE a.queue IS NOT NULL
            )
            SELECT array_agg(a.queue), array_agg(f.id) INTO queues, marks
            FROM available a
            CROSS JOIN LATERAL (
                SELECT j.id FROM river_job j
                WHERE j.state = 'available' AND j.queue = a.queue AND j.scheduled_at <= clock_timestamp()
                ORDER BY j.priority, j.scheduled_at, j.id LIMIT 1
            ) f
            CROSS JOIN LATERAL (
                SELECT sum((p.pools ->> a.queue)::int) AS workers FROM processes p
                WHERE p.beat_at > clock_timestamp() - interval '10 seconds'
            ) w
            WHERE w.workers IS NULL OR w.workers > (
                SELECT count(*) FROM (
                    SELECT FROM river_job r WHERE r.state = 'running' AND r.queue = a.queue LIMIT w.workers) running);
        END IF;
        IF EXISTS (SELECT FROM waiting_accounts) THEN
            SELECT queues || array_agg(s.queue), marks || array_agg(a.changes) INTO queues, marks
            FROM (
                SELECT v.event_type, l.lane, v.name || '_' || l.lane AS queue
                FROM weir_services v
                CROSS JOIN (VALUES ('priority'), ('default')) AS l (lane)
            ) s
            CROSS JOIN LATERAL (
                SELECT sum((p.lends ->> s.queue)::int) AS lends FROM processes p
                WHERE p.beat_at > clock_timestamp() - interval '10 seconds'
            ) w
            CROSS JOIN LATERAL (
                SELECT sum(t.changes)::bigint AS changes FROM accounts_to_lend_to(s.event_type, s.lane) t
                WHERE w.lends IS NULL OR w.lends > (
                    SELECT count(*) FROM (
                        SELECT FROM river_job r WHERE r.state = 'running' AND r.queue = s.queue LIMIT w.lends) running)
            ) a
            WHERE a.changes IS NOT NULL AND s.queue <> ALL (coalesce(queues, '{}'));
        END IF;
        EXIT WHEN queues IS NOT NULL OR clock_timestamp() >= until;
        COMMIT;
        PERFORM pg_sleep(greatest(0.05, 10 * extract(epoch FROM clock_timestamp() - began)));
    END LOOP;
END
$$;
