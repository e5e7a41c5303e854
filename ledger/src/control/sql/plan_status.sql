-- A user's current plan and scheduled plan.
-- Parameters: $1 user.
SELECT now_plan.tier::text AS plan,
       CASE WHEN s.next_plan_at > clock_timestamp() THEN next_plan.tier END::text AS next,
       CASE WHEN s.next_plan_at > clock_timestamp() THEN s.next_plan_at END AS next_at
FROM subscription_of($1, clock_timestamp()) n
JOIN subscription_plans now_plan ON now_plan.id = n.plan_id
LEFT JOIN user_subscriptions s ON s.user_id = $1 AND s.status = 'active'
LEFT JOIN subscription_plans next_plan ON next_plan.id = s.next_plan_id
