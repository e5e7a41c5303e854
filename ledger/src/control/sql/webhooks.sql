-- Webhooks that were not removed, with the status of their deliveries. Bounded index ranges of their queues: a receiver
-- that is down for a day leaves millions of deliveries.
SELECT w.id, w.url, w.events, w.thresholds, w.created_at,
       CASE WHEN w.previous_until > now() THEN w.previous_until END AS previous_until,
       w.disabled_at, w.disabled_because, d.waiting, f.failed, e.last_error
FROM webhooks w
CROSS JOIN LATERAL (
    SELECT count(*) AS waiting
    FROM (
        SELECT 1 FROM river_job j
        WHERE j.state IN ('available', 'retryable', 'running', 'scheduled') AND j.queue = webhook_queue(w.id)
        LIMIT 100000
    ) counted
) d
CROSS JOIN LATERAL (
    SELECT count(*) AS failed
    FROM (
        SELECT 1 FROM river_job j WHERE j.state = 'discarded' AND j.queue = webhook_queue(w.id)
        LIMIT 100000
    ) counted
) f
LEFT JOIN LATERAL (
    SELECT late.errors[array_upper(late.errors, 1)] ->> 'error' AS last_error
    FROM unnest('{available,retryable,running,scheduled,discarded}'::river_job_state[]) AS s (state)
    CROSS JOIN LATERAL (
        SELECT j.errors, j.attempted_at
        FROM river_job j
        WHERE j.state = s.state AND j.queue = webhook_queue(w.id) AND j.priority = 1
        ORDER BY j.scheduled_at DESC
        LIMIT 100
    ) late
    WHERE cardinality(late.errors) > 0
    ORDER BY late.attempted_at DESC
    LIMIT 1
) e ON true
WHERE w.removed_at IS NULL
ORDER BY w.created_at, w.id
