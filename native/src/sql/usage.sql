-- $1 user. One who was never seen has the Free plan.
SELECT plan.tier::text AS tier,
       period.period_start,
       period.period_end,
       plan.analysis_monthly_limit AS analysis_limit,
       plan.specview_monthly_limit AS specview_limit,
       coalesce(a.used, 0) AS analysis_used,
       coalesce(a.reserved, 0) AS analysis_reserved,
       coalesce(v.used, 0) AS specview_used,
       coalesce(v.reserved, 0) AS specview_reserved
FROM (
    SELECT p.*, s.current_period_start
    FROM (SELECT 1) AS one
    LEFT JOIN user_subscriptions s ON s.user_id = $1 AND s.status = 'active'
    JOIN subscription_plans p ON p.id = s.plan_id OR s.plan_id IS NULL AND p.tier = 'free'
) plan
CROSS JOIN LATERAL billing_period(
    coalesce(plan.current_period_start, timestamptz '2000-01-01 00:00:00+00'), clock_timestamp()
) period
LEFT JOIN quota_balances a
    ON a.user_id = $1 AND a.event_type = 'analysis' AND a.period_start = period.period_start
LEFT JOIN quota_balances v
    ON v.user_id = $1 AND v.event_type = 'specview' AND v.period_start = period.period_start
