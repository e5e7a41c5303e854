-- Takes the same locks as a reservation, in the same order, and reads what is locked, with the plan that each holder
-- has now. $1 job ids, $2 holders not to wait for.
SELECT h.holder, h.event_type, h.user_id, h.slots_in_use, h.parked, plan.tier, plan.lane, plan.slots
FROM (
    SELECT DISTINCT holder, event_type FROM quota_reservations
    WHERE job_id = ANY ($1::bigint[]) AND holder <> ALL ($2::uuid[])
    ORDER BY 1, 2
) w
CROSS JOIN LATERAL (
    SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type
    OFFSET 0 FOR NO KEY UPDATE
) h
LEFT JOIN LATERAL (
    SELECT p.tier::text AS tier, p.lane, l.slots
    FROM subscription_plans p
    JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = h.event_type
    WHERE p.id = coalesce(
        (SELECT u.plan_id FROM user_subscriptions u WHERE u.user_id = h.user_id AND u.status = 'active'),
        (SELECT d.id FROM subscription_plans d WHERE d.is_default))
    OFFSET 0
) plan ON h.user_id IS NOT NULL
