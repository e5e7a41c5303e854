-- Whether a webhook has failed since an event of it was emitted: another event was tried since then, and none was
-- delivered. Returns a row, or none.
-- Parameters: $1 the webhook, $2 the job that delivers the event. Reads index ranges of the queue.
SELECT
FROM webhooks w
JOIN river_job j ON j.id = $2
WHERE w.id = $1 AND (w.delivered_at IS NULL OR w.delivered_at < j.created_at)
  AND EXISTS (
      SELECT FROM river_job o
      WHERE o.queue = webhook_queue($1) AND o.state IN ('available', 'discarded', 'retryable', 'running', 'scheduled')
        AND o.id <> $2 AND cardinality(o.errors) > 0 AND o.attempted_at >= j.created_at)
