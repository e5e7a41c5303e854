-- Gives a user a plan and the next one. A user without a subscription had calendar months, and keeps them unless an
-- anchor is given.
-- Parameters: $1 user, $2 plan, $3 the anchor of the billing periods (null: unchanged), $4 and $5 the next plan and its
-- time, or null.
INSERT INTO user_subscriptions AS s (user_id, plan_id, current_period_start, current_period_end, next_plan_id, next_plan_at)
SELECT $1, $2, coalesce($3, a.anchor), p.period_end, $4, $5
FROM subscription_of($1, clock_timestamp()) a
CROSS JOIN LATERAL billing_period(coalesce($3, a.anchor), clock_timestamp()) p
ON CONFLICT (user_id) WHERE status = 'active' DO UPDATE
    SET plan_id = excluded.plan_id,
        current_period_start = excluded.current_period_start,
        current_period_end = CASE WHEN $3 IS NULL THEN s.current_period_end ELSE excluded.current_period_end END,
        next_plan_id = excluded.next_plan_id,
        next_plan_at = excluded.next_plan_at
