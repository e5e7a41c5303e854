-- Replays the delivery of an event, as a manual retry in River does, with as many attempts as the first time.
-- Parameters: $1 the webhook, $2 the event.
WITH again AS (
    UPDATE river_job j
    SET state = 'available', scheduled_at = now(), finalized_at = NULL, max_attempts = j.attempt + 10
    WHERE j.state IN ('completed', 'cancelled', 'discarded', 'retryable', 'scheduled') AND j.queue = webhook_queue($1)
      AND j.kind = 'weir:webhook' AND j.args ->> 'event' = $2
    RETURNING j.id
)
SELECT count(*) AS replayed FROM again
