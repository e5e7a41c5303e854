-- Waits up to $1 milliseconds for available jobs that no idle worker has claimed: their transactions did not notify
-- workers. Returns their queues, and the first such job of each; NULL if there were none.
--
-- It looks every 50 ms, or more rarely while a look is slow, as it is while a session holds an old snapshot. A queue with
-- as many running jobs as workers is left out: its next claim finds the jobs. The workers of other programs are unknown
-- and count as idle.
-- A procedure, because it commits after each look: a function would hold one snapshot all the time. Such a procedure
-- cannot pin its search_path.
-- Cost: one index look-up a look without available jobs. Three for each queue with available jobs, and one row for each
-- of its running jobs.
-- Callers: ledger/src/reconciliation/mod.rs.
CREATE OR REPLACE PROCEDURE await_unclaimed(milliseconds int, INOUT queues text[], INOUT first_jobs bigint[])
LANGUAGE plpgsql
AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() + make_interval(secs => milliseconds / 1000.0);
    began timestamptz;
BEGIN
    LOOP
        began := clock_timestamp();
        -- River's index is (state, queue, priority, scheduled_at, id).
        WITH RECURSIVE available AS (
            (SELECT j.queue FROM river_job j WHERE j.state = 'available' ORDER BY j.queue LIMIT 1)
            UNION ALL
            SELECT (SELECT j.queue FROM river_job j WHERE j.state = 'available' AND j.queue > a.queue
                    ORDER BY j.queue LIMIT 1)
            FROM available a WHERE a.queue IS NOT NULL
        )
        SELECT array_agg(a.queue), array_agg(f.id) INTO queues, first_jobs
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
        EXIT WHEN queues IS NOT NULL OR clock_timestamp() >= until;
        COMMIT;
        PERFORM pg_sleep(greatest(0.05, 10 * extract(epoch FROM clock_timestamp() - began)));
    END LOOP;
END
$$;
