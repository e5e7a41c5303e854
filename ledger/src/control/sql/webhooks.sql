-- Webhooks that were not removed, with what became of their deliveries. $1 one of them; null is all. A few index ranges of its
-- queue each, which grow with what waits and with what was given up in River's retention of such jobs.
SELECT w.id, w.url, w.events, w.thresholds, w.created_at,
       CASE WHEN w.previous_until > now() THEN w.previous_until END AS previous_until,
       w.disabled_at, w.disabled_because, d.waiting, d.failed, e.last_error
FROM webhooks w
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE j.state <> 'discarded') AS waiting,
           count(*) FILTER (WHERE j.state = 'discarded') AS failed
    FROM river_job j
    WHERE j.state IN ('available', 'retryable', 'running', 'scheduled', 'discarded') AND j.queue = webhook_queue(w.id)
) d
LEFT JOIN LATERAL (
    SELECT j.errors[array_upper(j.errors, 1)] ->> 'error' AS last_error
    FROM river_job j
    WHERE j.state IN ('available', 'retryable', 'running', 'scheduled', 'discarded') AND j.queue = webhook_queue(w.id)
      AND cardinality(j.errors) > 0
    ORDER BY j.attempted_at DESC
    LIMIT 1
) e ON true
WHERE w.removed_at IS NULL AND ($1::uuid IS NULL OR w.id = $1)
ORDER BY w.created_at, w.id
