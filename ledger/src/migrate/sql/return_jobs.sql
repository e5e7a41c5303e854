-- Counts the jobs that only Weir would continue, by the state in which River's clients continue or end them:
--
-- - A job that waits for a slot, its time or a later answer becomes available, or scheduled until its time.
-- - The attempt of a dead process failed. The job runs again if it has attempts left.
-- - The delivery to a webhook is cancelled.
--
-- Parameters: $1 whether to write these states. Reads all unfinished jobs.
WITH waiting AS MATERIALIZED (
    SELECT j.id, j.state AS is_now,
           CASE WHEN j.kind = 'weir:webhook' THEN 'cancelled'
                WHEN j.state = 'running' THEN state_after_failure(j.metadata, j.attempt, j.max_attempts, 'available')::text
                WHEN j.scheduled_at > now() THEN 'scheduled'
                ELSE 'available' END::river_job_state AS becomes
    FROM river_job j
    WHERE j.finalized_at IS NULL
      AND (j.kind = 'weir:webhook'
           OR j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] IN (SELECT p.client_id FROM processes p)
           OR j.state = 'pending' AND (EXISTS (SELECT FROM weir_jobs s WHERE s.job_id = j.id)
                                       OR EXISTS (SELECT FROM outstanding_attempts o WHERE o.job_id = j.id)))
), changed AS (
    UPDATE river_job j
    SET state = w.becomes,
        finalized_at = CASE WHEN w.becomes IN ('cancelled', 'discarded') THEN now() END,
        errors = CASE WHEN w.is_now = 'running'
                      THEN array_append(j.errors, attempt_error(j.attempt, now(), 'the process that worked the job died'))
                      ELSE j.errors END
    FROM waiting w
    WHERE $1::boolean AND j.id = w.id AND j.state = w.is_now
)
SELECT becomes::text, count(*) FROM waiting GROUP BY 1
