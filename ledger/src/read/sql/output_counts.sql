-- The state of a holder's jobs, and a number in the output of each. PostgreSQL evaluates the path, because outputs may
-- have megabytes. $state and $output are replaced by expressions.
-- Parameters: $1 holder, $2 jobs, $3 the JSON path of the number. Looks up each job by key and reads its output.
SELECT s.job_id, $state AS state,
       jsonb_path_query_first($output, $3::text::jsonpath, '{}', true)::bigint AS count
FROM submissions s
WHERE s.holder = $1 AND s.job_id = ANY ($2)
