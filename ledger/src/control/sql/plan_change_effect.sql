-- The effect of a payment provider's event: the reason for a refusal, or the plan and the anchor of the billing periods
-- after the event, and a scheduled change that then is in force. new_anchor is null if the periods stay.
-- Parameters: $1 user, $2 plan, $3 when it happened, $4 subscription, $5 the anchor that the event asks for.
SELECT e.refusal, p.id AS plan_id, nullif(e.anchor, s.anchor) AS new_anchor, n.id AS next_plan_id,
       CASE WHEN n.id IS NOT NULL THEN e.next_at END AS next_at
FROM plan_change_effect($1, $2, $3, $4, $5) e
JOIN subscription_plans p ON p.tier = e.plan
LEFT JOIN subscription_plans n ON n.tier = e.next_plan
CROSS JOIN LATERAL subscription_of($1, clock_timestamp()) s
