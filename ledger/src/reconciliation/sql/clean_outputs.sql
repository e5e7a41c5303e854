-- Deletes large outputs of jobs that no longer exist, from a slice in the order of their jobs.
-- Parameters: $1 the last job of the previous slice, $2 the size of a slice. `last` is null after the last slice,
-- `done` is the number of deleted outputs.
WITH slice AS MATERIALIZED (
    SELECT job_id FROM job_outputs WHERE job_id > $1 ORDER BY job_id LIMIT $2
), gone AS (
    DELETE FROM job_outputs o
    USING slice l
    WHERE o.job_id = l.job_id
      AND NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = l.job_id)
      AND NOT EXISTS (SELECT 1 FROM finished_jobs f WHERE f.job_id = l.job_id)
    RETURNING 1
)
SELECT CASE WHEN count(*) = $2 THEN max(job_id) END AS last, (SELECT count(*) FROM gone) AS done FROM slice
