-- Unfinished jobs by queue; parked ones (pending) are counted from the holders instead, since there may be very many.
SELECT queue,
       count(*) FILTER (WHERE state <> 'running') AS queued,
       count(*) FILTER (WHERE state = 'running') AS running,
       coalesce((1000 * extract(epoch FROM now() - min(scheduled_at) FILTER (
           WHERE state = 'available' AND scheduled_at <= now())))::bigint, 0) AS oldest_wait_ms
FROM river_job
WHERE state IN ('available', 'running', 'retryable', 'scheduled')
GROUP BY queue
