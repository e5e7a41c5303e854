DELETE FROM submissions s
WHERE s.job_id IN (
    SELECT s.job_id FROM submissions s
    WHERE s.created_at < now() - interval '25 hours' AND NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = s.job_id)
    ORDER BY s.job_id
    LIMIT 5000
);
DELETE FROM specview_cache c
WHERE c.created_at < now() - interval '180 days';
