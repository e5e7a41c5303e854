-- The jobs among these that are not locked or do not exist.
-- Parameters: $1 job ids.
SELECT a.job_id
FROM (SELECT DISTINCT id AS job_id FROM unnest($1::bigint[]) AS u (id) ORDER BY 1) a
LEFT JOIN LATERAL (
    SELECT j.id FROM river_job j WHERE j.id = a.job_id OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED
) f ON true
LEFT JOIN LATERAL (SELECT j.id FROM river_job j WHERE j.id = a.job_id OFFSET 0) e ON true
WHERE f.id IS NOT NULL OR e.id IS NULL
