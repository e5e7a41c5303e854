-- The status of a delivery. River keeps the error of each attempt, and in the metadata the output of a success.
-- Parameters: $1 job. Looks up the job by key.
SELECT state = 'completed' AS delivered, finalized_at IS NOT NULL AS ended,
       errors[array_upper(errors, 1)] ->> 'error' AS last_error, metadata -> 'output' AS output
FROM river_job
WHERE id = $1
