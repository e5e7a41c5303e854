-- Deletes finished jobs that their users' plans no longer keep. A job stays if its plan's retention was extended since
-- the last check.
-- Parameters: $1 how many at most.
WITH due AS MATERIALIZED (
    SELECT f.job_id, coalesce(f.finalized_at + retention_of(p.retention_days), 'infinity') AS ends
    FROM finished_jobs f
    CROSS JOIN LATERAL (SELECT s.plan_id FROM subscription_of(f.user_id, now()) s OFFSET 0) s
    JOIN subscription_plans p ON p.id = s.plan_id
    WHERE f.review_at <= now()
    ORDER BY f.review_at
    LIMIT $1
    FOR UPDATE OF f SKIP LOCKED
), gone AS (
    DELETE FROM finished_jobs f USING due d WHERE f.job_id = d.job_id AND d.ends <= now()
)
UPDATE finished_jobs f SET review_at = least(d.ends, now() + interval '30 days')
FROM due d
WHERE f.job_id = d.job_id AND d.ends > now()
