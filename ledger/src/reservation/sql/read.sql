-- The accounts that the locks protect. $1 holders, $2 event types, pairwise and distinct.
-- A user without an active subscription has the Free plan and calendar months.
SELECT w.n AS position,
       h.slots_in_use,
       h.parked,
       plan.tier::text AS tier,
       plan.monthly_limit,
       period.period_start,
       period.period_end,
       coalesce(b.used, 0) AS used,
       coalesce(b.reserved, 0) AS reserved
FROM unnest($1::uuid[], $2::usage_event_type[]) WITH ORDINALITY AS w (holder, event_type, n)
CROSS JOIN LATERAL (
    SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type OFFSET 0
) h
LEFT JOIN LATERAL (
    SELECT p.tier,
           s.current_period_start,
           monthly_limit(p, h.event_type) AS monthly_limit
    FROM (SELECT 1) AS one
    LEFT JOIN LATERAL (
        SELECT * FROM user_subscriptions u WHERE u.user_id = h.user_id AND u.status = 'active' OFFSET 0
    ) s ON true
    JOIN subscription_plans p ON p.id = s.plan_id OR s.plan_id IS NULL AND p.tier = 'free'
) plan ON h.user_id IS NOT NULL
LEFT JOIN LATERAL billing_period(
    coalesce(plan.current_period_start, timestamptz '2000-01-01 00:00:00+00'), clock_timestamp()
) period ON h.user_id IS NOT NULL
LEFT JOIN LATERAL (
    SELECT * FROM quota_balances q
    WHERE q.user_id = h.user_id AND q.event_type = h.event_type AND q.period_start = period.period_start
    OFFSET 0
) b ON true
