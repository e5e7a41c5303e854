-- The status of a delivery. River keeps the error of each attempt, and in the metadata the output of a success.
-- Parameters: $1 job. Looks up the job and its webhook by key.
SELECT j.state = 'completed' AS delivered, j.finalized_at IS NOT NULL AS ended,
       j.errors[array_upper(j.errors, 1)] ->> 'error' AS last_error, j.metadata -> 'output' AS output, w.disabled_because
FROM river_job j
LEFT JOIN webhooks w ON w.id::text = j.args ->> 'webhook'
WHERE j.id = $1
