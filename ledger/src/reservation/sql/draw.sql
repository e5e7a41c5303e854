-- Records how much new jobs draw from grants: in grant_draws, the grants, the reservations and the balances. Runs after
-- the reservations and balances were written. The holders are locked, so the ctids of their balances and grants do not
-- change. draw_grants() does this for one job of a SQL caller.
-- Parameters: $1 jobs, $2 positions, $3 grants, $4 amounts.
WITH drawn AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::uuid[], $4::bigint[]) AS d (job_id, position, grant_id, amount)
), draws AS (
    INSERT INTO grant_draws (job_id, position, grant_id, amount) SELECT * FROM drawn
), of_grants AS (
    UPDATE grants g SET reserved = g.reserved + d.amount
    FROM (
        SELECT s.amount, (SELECT k.ctid FROM grants k WHERE k.id = s.grant_id) AS place
        FROM (SELECT grant_id, sum(amount)::bigint AS amount FROM drawn GROUP BY 1) s
    ) d
    WHERE g.ctid = d.place
), of_jobs AS MATERIALIZED (
    SELECT r.job_id, r.user_id, r.event_type, r.period_start, d.amount
    FROM (SELECT job_id, sum(amount)::bigint AS amount FROM drawn GROUP BY 1) d
    CROSS JOIN LATERAL (SELECT * FROM quota_reservations q WHERE q.job_id = d.job_id OFFSET 0) r
), reservations AS (
    UPDATE quota_reservations r SET from_grants = j.amount FROM of_jobs j WHERE r.job_id = j.job_id
)
UPDATE quota_balances b SET from_grants = b.from_grants + d.amount
FROM (
    SELECT j.amount,
           (SELECT k.ctid FROM quota_balances k
            WHERE k.user_id = j.user_id AND k.event_type = j.event_type AND k.span = 'month'
              AND k.period_start = j.period_start
            ORDER BY k.generation DESC LIMIT 1) AS place
    FROM (SELECT user_id, event_type, period_start, sum(amount)::bigint AS amount FROM of_jobs GROUP BY 1, 2, 3) j
) d
WHERE b.ctid = d.place
