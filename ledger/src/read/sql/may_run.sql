-- Whether an attempt at a job runs or could start within 5 s. A job with an outstanding answer has none.
-- Parameters: $1 job. Looks up the job by key.
SELECT EXISTS (
    SELECT 1 FROM river_job j
    WHERE j.id = $1 AND j.finalized_at IS NULL
      AND NOT (j.state IN ('retryable', 'scheduled') AND j.scheduled_at > now() + interval '5 seconds')
      AND NOT (j.state = 'pending' AND EXISTS (SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by))))
