-- Deletes the rows of ended jobs an hour after their key has expired, if the job was deleted by River and not kept. Reads
-- a slice in the order of the jobs, which is nearly that of their age.
-- Parameters: $1 the last job of the previous slice, $2 the size of a slice. `last` is null when the slice reaches
-- jobs that are too young, `done` is the number of deleted rows.
WITH slice AS MATERIALIZED (
    SELECT job_id, coalesce(submitted_at, reserved_at) AS created_at FROM weir_jobs WHERE job_id > $1 ORDER BY job_id LIMIT $2
), free AS (
    SELECT s.job_id
    FROM weir_jobs s
    JOIN slice o ON o.job_id = s.job_id
    WHERE o.created_at < now() - key_lifetime() - interval '1 hour' AND s.ended_at IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = o.job_id)
      AND NOT EXISTS (SELECT 1 FROM finished_jobs k WHERE k.job_id = o.job_id)
    FOR UPDATE OF s SKIP LOCKED
), gone AS (
    DELETE FROM weir_jobs s USING free f WHERE s.job_id = f.job_id RETURNING 1
)
SELECT CASE WHEN max(created_at) < now() - key_lifetime() - interval '1 hour' AND count(*) = $2 THEN max(job_id) END AS last,
       (SELECT count(*) FROM gone) AS done
FROM slice
