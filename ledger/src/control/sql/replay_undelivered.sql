-- Replays failed deliveries, as replay.sql does. Skips deliveries that were attempted after $4, so that a delivery that
-- fails again is not replayed twice.
-- Parameters: $1 the webhook, $2 since when they were emitted, $3 how many at most, $4 the time of the call.
WITH batch AS (
    SELECT j.id
    FROM river_job j
    WHERE j.state IN ('cancelled', 'discarded', 'retryable', 'scheduled') AND j.queue = webhook_queue($1)
      AND j.kind = 'weir:webhook' AND j.created_at >= $2 AND (j.attempted_at IS NULL OR j.attempted_at < $4)
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
), again AS (
    UPDATE river_job j
    SET state = 'available', scheduled_at = now(), finalized_at = NULL, max_attempts = j.attempt + 10
    FROM batch
    WHERE j.id = batch.id
    RETURNING j.id
)
SELECT count(*) AS replayed FROM again
