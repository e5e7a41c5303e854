-- Makes deliveries of a webhook again, as River retries a job by hand, with as many attempts as the first time. $1 the webhook,
-- $2 an event, or else $3 since when those that were not delivered were told.
WITH again AS (
    UPDATE river_job j
    SET state = 'available', scheduled_at = now(), finalized_at = NULL, max_attempts = j.attempt + 10
    WHERE j.state IN ('completed', 'cancelled', 'discarded', 'retryable', 'scheduled') AND j.queue = webhook_queue($1)
      AND j.kind = 'weir:webhook'
      AND CASE WHEN $2::text IS NOT NULL THEN j.args ->> 'event' = $2
               ELSE j.state <> 'completed' AND j.created_at >= $3::timestamptz END
    RETURNING j.queue
), told AS (
    SELECT pg_notify(river_channel('river_insert'), json_build_object('queue', q.queue)::text)
    FROM (SELECT DISTINCT queue FROM again) q
)
SELECT (SELECT count(*) FROM again) AS replayed, (SELECT count(*) FROM told) AS told
