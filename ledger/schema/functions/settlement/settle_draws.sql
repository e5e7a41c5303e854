-- Settles the draws of ended jobs on grants. Each draw is charged in the order of the draws, and the rest returns to
-- its grant. The caller holds the accounts' locks.
-- Cost: one index range a job, and one write a draw and grant.
-- Callers: settle_many, release_jobs.
CREATE OR REPLACE FUNCTION settle_draws(jobs bigint[], charges bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT d.job_id, d.position, d.grant_id, d.amount,
               least(d.amount, greatest(0, e.charged - (
                   sum(d.amount) OVER (PARTITION BY d.job_id ORDER BY d.position) - d.amount)))::bigint AS charged
        FROM unnest(jobs, charges) AS e (job_id, charged)
        JOIN grant_draws d ON d.job_id = e.job_id AND d.charged IS NULL
    ), charged AS (
        UPDATE grant_draws d SET charged = e.charged FROM ended e
        WHERE d.job_id = e.job_id AND d.position = e.position AND e.charged > 0
    ), returned AS (
        DELETE FROM grant_draws d USING ended e
        WHERE d.job_id = e.job_id AND d.position = e.position AND e.charged = 0
    )
    UPDATE grants g SET reserved = g.reserved - s.amount, used = g.used + s.charged
    FROM (SELECT grant_id, sum(amount)::bigint AS amount, sum(charged)::bigint AS charged FROM ended GROUP BY 1) s
    WHERE g.id = s.grant_id;
END
$$;
