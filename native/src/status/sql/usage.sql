-- One row an event type. $1 user. One who was never seen has the Free plan.
SELECT e.event_type,
       plan.tier::text AS tier,
       period.period_start,
       period.period_end,
       plan.monthly_limit,
       coalesce(b.used, 0) AS used,
       coalesce(b.reserved, 0) AS reserved
FROM unnest(enum_range(NULL::usage_event_type)) AS e (event_type)
CROSS JOIN LATERAL (
    SELECT p.tier, s.current_period_start, monthly_limit(p, e.event_type) AS monthly_limit
    FROM (SELECT 1) AS one
    LEFT JOIN user_subscriptions s ON s.user_id = $1 AND s.status = 'active'
    JOIN subscription_plans p ON p.id = s.plan_id OR s.plan_id IS NULL AND p.tier = 'free'
) plan
CROSS JOIN LATERAL billing_period(
    coalesce(plan.current_period_start, timestamptz '2000-01-01 00:00:00+00'), clock_timestamp()
) period
LEFT JOIN quota_balances b
    ON b.user_id = $1 AND b.event_type = e.event_type AND b.period_start = period.period_start
