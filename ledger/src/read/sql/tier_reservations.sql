-- Reservations by meter and by the tier that their owner has now: admitted ones hold a slot, parked ones wait for
-- one, the others are between two attempts. One pass over the unfinished jobs, whatever the number of users.
SELECT g.event_type::text AS meter,
       CASE WHEN g.user_id IS NULL THEN 'anonymous' ELSE p.tier::text END AS tier,
       sum(g.admitted)::float8 AS admitted,
       sum(g.parked)::float8 AS parked,
       sum(g.between)::float8 AS between_attempts
FROM (
    SELECT event_type, user_id,
           count(admitted_at) AS admitted,
           count(parked_at) AS parked,
           count(*) FILTER (WHERE admitted_at IS NULL AND parked_at IS NULL) AS between
    FROM quota_reservations
    GROUP BY 1, 2
) g
CROSS JOIN LATERAL subscription_of(g.user_id, now()) s
JOIN subscription_plans p ON p.id = s.plan_id
GROUP BY 1, 2
