-- The same of deliveries that were not made. $1 the webhook, $2 since when they were told, $3 how many at most, $4 the
-- moment after which none of them was tried: what fails again meanwhile is not made again.
WITH few AS (
    SELECT j.id
    FROM river_job j
    WHERE j.state IN ('cancelled', 'discarded', 'retryable', 'scheduled') AND j.queue = webhook_queue($1)
      AND j.kind = 'weir:webhook' AND j.created_at >= $2 AND (j.attempted_at IS NULL OR j.attempted_at < $4)
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
), again AS (
    UPDATE river_job j
    SET state = 'available', scheduled_at = now(), finalized_at = NULL, max_attempts = j.attempt + 10
    FROM few
    WHERE j.id = few.id
    RETURNING j.queue
), told AS (
    SELECT wake_queue(q.queue) FROM (SELECT DISTINCT queue FROM again) q
)
SELECT (SELECT count(*) FROM again) AS replayed, (SELECT count(*) FROM told) AS told
