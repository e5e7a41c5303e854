-- Over both the limit of today and the one in force when a reservation was last accepted: a plan that was lowered
-- since is no fault, usage that nobody granted is.
SELECT format('user %s, %s, %s of %s: used %s + reserved %s > limit %s',
              b.user_id, b.event_type, b.span, b.period_start, b.used, b.reserved, greatest(b.granted_limit, p.most))
FROM quota_balances b
CROSS JOIN LATERAL (
    SELECT CASE b.span WHEN 'month' THEN l.month WHEN 'day' THEN l.day WHEN 'hour' THEN l.hour ELSE l.minute END AS most
    FROM plan_limits l
    WHERE l.event_type = b.event_type AND l.plan_id = coalesce(
        (SELECT s.plan_id FROM user_subscriptions s WHERE s.user_id = b.user_id AND s.status = 'active'),
        (SELECT d.id FROM subscription_plans d WHERE d.is_default))
) p
WHERE p.most IS NOT NULL AND b.used::numeric + b.reserved > greatest(b.granted_limit, p.most)
LIMIT $1
