-- Deliveries to enabled webhooks that wait for an attempt, and for how long, in seconds, one of these webhooks has
-- received no event although one waits. Reads bounded index ranges of the webhooks' queues: a receiver that is down for
-- a day leaves millions of deliveries.
SELECT coalesce(sum(d.waiting), 0)::bigint AS waiting,
       coalesce(extract(epoch FROM clock_timestamp() - min(greatest(d.oldest, w.delivered_at))), 0)::float8
           AS undelivered_seconds
FROM webhooks w
CROSS JOIN LATERAL (
    SELECT count(*) AS waiting, min(counted.created_at) AS oldest
    FROM (
        SELECT j.created_at FROM river_job j
        WHERE j.state IN ('available', 'retryable', 'running', 'scheduled') AND j.queue = webhook_queue(w.id)
        LIMIT 100000
    ) counted
) d
WHERE w.removed_at IS NULL AND w.disabled_at IS NULL AND d.waiting > 0
