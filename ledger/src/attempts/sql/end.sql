-- Ends an attempt that did not complete its job, as River's client does: the job is retried, snoozed, cancelled or
-- discarded, and a job whose cancellation was requested is cancelled instead of waiting. A delivery is completed. A job that
-- is due within 5 s is available at once, because River's scheduler looks that often. A failed job with a slot is not,
-- because it is about to give it up: maintenance makes it available when it has a slot again.
-- Parameters: $1 job, $2 claim, $3 when the job was created, $4 the end: retryable, snoozed, interrupted, completed,
-- cancelled or discarded, $5 error or null, $6 seconds until the next attempt, $7 metadata to add.
-- Returns no row when the attempt is over. A look-up by key.
WITH attempt AS MATERIALIZED (
    SELECT j.id,
           CASE WHEN $4::text IN ('completed', 'cancelled', 'discarded') THEN $4
                WHEN $4 = 'retryable' THEN state_after_failure(j.metadata, j.attempt, j.max_attempts,
                    CASE WHEN $6::float8 <= 5 AND NOT EXISTS (
                             SELECT FROM quota_reservations r WHERE r.job_id = j.id AND r.admitted_at IS NOT NULL)
                         THEN 'available' ELSE 'retryable' END)
                WHEN j.metadata ? 'cancel_attempted_at' THEN 'cancelled'
                WHEN $6 <= 5 THEN 'available'
                ELSE 'scheduled' END AS state
    FROM river_job j
    WHERE j.id = $1 AND claim_of(j.attempt, j.attempted_by) = $2 AND j.created_at = $3
      AND (j.state = 'running') IS TRUE
    FOR NO KEY UPDATE
)
UPDATE river_job j
SET state = a.state::river_job_state,
    attempt = CASE WHEN $4 IN ('snoozed', 'interrupted') AND a.state <> 'cancelled' THEN greatest(j.attempt - 1, 0)
                   ELSE j.attempt END,
    scheduled_at = CASE WHEN a.state IN ('available', 'retryable', 'scheduled')
                        THEN now() + make_interval(secs => $6) ELSE j.scheduled_at END,
    finalized_at = CASE WHEN a.state IN ('completed', 'cancelled', 'discarded') THEN now() END,
    errors = CASE WHEN $5::text IS NULL THEN j.errors
                  ELSE array_append(j.errors, attempt_error(
                      j.attempt, attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at), $5)) END,
    metadata = j.metadata || $7::jsonb
        || CASE WHEN $4 <> 'snoozed' THEN '{}'
                WHEN j.metadata ->> 'snoozes' ~ '^[0-9]{1,9}$'
                    THEN jsonb_build_object('snoozes', (j.metadata ->> 'snoozes')::int + 1)
                ELSE '{"snoozes": 1}' END
FROM attempt a
WHERE j.id = a.id
RETURNING a.state
