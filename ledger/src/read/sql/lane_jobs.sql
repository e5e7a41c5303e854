-- Unfinished jobs by queue. Parked jobs (pending) are counted from the reservations, because there may be very many. A
-- job with an outstanding answer is also pending, and counts as running.
SELECT queue,
       sum(queued)::bigint AS queued,
       (sum(running) + sum(outstanding))::bigint AS running,
       sum(outstanding)::bigint AS outstanding,
       sum(lent)::bigint AS lent,
       coalesce((1000 * extract(epoch FROM now() - min(oldest)))::bigint, 0) AS oldest_wait_ms
FROM (
    SELECT queue,
           count(*) FILTER (WHERE state <> 'running') AS queued,
           count(*) FILTER (WHERE state = 'running') AS running,
           0 AS outstanding,
           count(*) FILTER (WHERE state = 'running' AND metadata ->> 'weir:lent' = attempt::text) AS lent,
           min(scheduled_at) FILTER (WHERE state = 'available' AND scheduled_at <= now()) AS oldest
    FROM river_job
    WHERE state IN ('available', 'running', 'retryable', 'scheduled')
    GROUP BY queue
    UNION ALL
    SELECT o.queue, 0, 0, count(*), 0, NULL FROM outstanding_jobs() o GROUP BY o.queue
) counted
GROUP BY queue
