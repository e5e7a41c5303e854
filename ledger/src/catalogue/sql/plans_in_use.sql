-- The plans among these that have subscriptions, including ended ones.
-- Parameters: $1 names.
SELECT p.tier::text AS tier, count(*) AS subscriptions, count(*) FILTER (WHERE s.status = 'active') AS active,
       (array_agg(s.user_id::text ORDER BY s.status))[1] AS example
FROM subscription_plans p
JOIN user_subscriptions s ON p.id IN (s.plan_id, s.next_plan_id)
WHERE p.tier = ANY ($1::text[])
GROUP BY 1
ORDER BY 1
