-- Gives a user a plan. An earlier scheduled change stays if it is in force by now, and is superseded otherwise. A user
-- without a subscription had calendar months, and keeps them unless an anchor is given.
-- Parameters: $1 user, $2 plan, $3 whether it takes effect at the end of the period, $4 the anchor of the billing
-- periods (null: unchanged), $5 and $6 the next plan and its time, unless $2 takes effect then.
INSERT INTO user_subscriptions AS s (user_id, plan_id, current_period_start, current_period_end, next_plan_id, next_plan_at)
SELECT $1, CASE WHEN $3 THEN a.plan_id ELSE $2 END, coalesce($4, a.anchor), p.period_end,
       CASE WHEN $3 THEN $2 ELSE $5 END,
       CASE WHEN $3 THEN p.period_end ELSE $6 END
FROM subscription_of($1, clock_timestamp()) a
CROSS JOIN LATERAL billing_period(coalesce($4, a.anchor), clock_timestamp()) p
ON CONFLICT (user_id) WHERE status = 'active' DO UPDATE
    SET plan_id = CASE WHEN NOT $3 THEN $2
                       WHEN s.next_plan_at <= clock_timestamp() THEN s.next_plan_id
                       ELSE s.plan_id END,
        current_period_start = excluded.current_period_start,
        current_period_end = CASE WHEN $4 IS NULL THEN s.current_period_end ELSE excluded.current_period_end END,
        next_plan_id = excluded.next_plan_id,
        next_plan_at = excluded.next_plan_at
