-- Reservations by event type and by the tier that their owner has now: admitted ones hold a slot, parked ones wait for
-- one, the others are between two attempts. One pass over the unfinished jobs, whatever the number of users.
SELECT g.event_type::text AS event_type,
       CASE WHEN g.user_id IS NULL THEN 'anonymous' ELSE coalesce(p.tier::text, (SELECT d.tier::text FROM subscription_plans d WHERE d.is_default))
            END AS tier,
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
LEFT JOIN user_subscriptions s ON s.user_id = g.user_id AND s.status = 'active'
LEFT JOIN subscription_plans p ON p.id = plan_in_force(s, now())
GROUP BY 1, 2
