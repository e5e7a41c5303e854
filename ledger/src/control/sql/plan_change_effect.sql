-- The effect of a payment provider's event: the reason for a refusal, or the plan, the anchor of the billing periods and
-- the next plan after the event. new_anchor is null if the periods stay. due_at is when a scheduled event takes effect:
-- at the end of the period that its own subscription has asked for, or of the user's present one.
-- Parameters: $1 user, $2 plan, $3 when it happened, $4 subscription, $5 the anchor that the event asks for, $6 whether it
-- takes effect at the end of the period.
SELECT e.refusal, p.id AS plan_id, nullif(e.anchor, s.anchor) AS new_anchor, n.id AS next_plan_id,
       CASE WHEN n.id IS NOT NULL THEN e.next_at END AS next_at, due.at AS due_at
FROM subscription_of($1, clock_timestamp()) s
LEFT JOIN LATERAL (
    SELECT a.anchor FROM plan_changes a
    WHERE a.user_id = $1 AND a.subscription = $4 AND a.anchor IS NOT NULL
    ORDER BY a.occurred_at DESC LIMIT 1
) own ON true
LEFT JOIN LATERAL (
    SELECT b.period_end AS at FROM billing_period(coalesce($5, own.anchor, s.anchor), clock_timestamp()) b
) due ON $6
CROSS JOIN LATERAL plan_change_effect($1, $2, $3, $4, $5, due.at) e
JOIN subscription_plans p ON p.tier = e.plan
LEFT JOIN subscription_plans n ON n.tier = e.next_plan
