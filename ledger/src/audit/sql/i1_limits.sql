-- Over both the limit of today and the one in force when a reservation was last accepted: a plan that was lowered
-- since is no fault, usage that nobody granted is.
SELECT format('user %s, %s, period of %s: used %s + reserved %s > limit %s',
              b.user_id, b.event_type, b.period_start, b.used, b.reserved, greatest(b.granted_limit, p.monthly_limit))
FROM quota_balances b
CROSS JOIN LATERAL (
    SELECT monthly_limit(p, b.event_type) AS monthly_limit
    FROM (SELECT 1) AS one
    LEFT JOIN user_subscriptions s ON s.user_id = b.user_id AND s.status = 'active'
    JOIN subscription_plans p ON p.id = s.plan_id OR s.plan_id IS NULL AND p.tier = 'free'
) p
WHERE p.monthly_limit IS NOT NULL AND b.used + b.reserved > greatest(b.granted_limit, p.monthly_limit)
LIMIT $1
