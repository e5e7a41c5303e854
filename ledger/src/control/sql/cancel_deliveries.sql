-- Cancels deliveries to a removed webhook.
-- Parameters: $1 the webhook, $2 the maximum number of deliveries. Reads a range of the queue's index.
UPDATE river_job j
SET state = 'cancelled', finalized_at = now()
FROM (
    SELECT id FROM river_job
    WHERE queue = webhook_queue($1) AND state IN ('available', 'pending', 'retryable', 'scheduled')
    LIMIT $2
    FOR NO KEY UPDATE SKIP LOCKED
) batch
WHERE j.id = batch.id
