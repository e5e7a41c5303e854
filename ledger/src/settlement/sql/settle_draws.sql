-- Settles the grants' part of ended jobs. Runs after the charges and balances were written. The holders are locked, so
-- their balances and usage events stay at their places (ctid). charge_reservation() does this for SQL callers.
-- Parameters: $1 jobs, $2 charged to grants, $3 returned to grants, $4 user ids, $5 meters, $6 periods.
WITH ended AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::uuid[], $5::usage_event_type[], $6::timestamptz[])
        AS e (job_id, charged, returned, user_id, event_type, period_start)
), events AS (
    UPDATE usage_events u SET from_grants = e.charged
    FROM (
        SELECT n.charged, (SELECT k.ctid FROM usage_events k WHERE k.job_id = n.job_id) AS place FROM ended n WHERE n.charged > 0
    ) e
    WHERE u.ctid = e.place
), balances AS (
    UPDATE quota_balances b SET from_grants = b.from_grants - d.returned
    FROM (
        SELECT e.returned,
               (SELECT k.ctid FROM quota_balances k
                WHERE k.user_id = e.user_id AND k.event_type = e.event_type AND k.span = 'month'
                  AND k.period_start = e.period_start
                ORDER BY k.generation DESC LIMIT 1) AS place
        FROM (
            SELECT user_id, event_type, period_start, sum(returned)::bigint AS returned FROM ended GROUP BY 1, 2, 3
        ) e
    ) d
    WHERE b.ctid = d.place
)
SELECT settle_draws($1, $2)
