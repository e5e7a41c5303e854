-- The effect of a payment provider's event: the reason for a refusal, or the plan and the anchor of the billing periods
-- after the event. new_anchor is null if the periods stay.
-- Parameters: $1 user, $2 plan, $3 when it happened, $4 subscription, $5 the anchor that the event asks for.
SELECT e.refusal, p.id AS plan_id, nullif(e.anchor, s.anchor) AS new_anchor
FROM plan_change_effect($1, $2, $3, $4, $5) e
JOIN subscription_plans p ON p.tier = e.plan
CROSS JOIN LATERAL subscription_of($1, clock_timestamp()) s
