-- Over both the plan's limit of today and the one in force when a slot was last given. $2 plans whose
-- slots the configuration sets, $3 those slots, $4 the slots of a client address.
SELECT format('holder %s, %s: %s slots in use, limit %s', h.holder, h.event_type, h.slots_in_use, greatest(h.granted_slots, t.slots))
FROM holders h
LEFT JOIN user_subscriptions s ON s.user_id = h.user_id AND s.status = 'active'
LEFT JOIN subscription_plans p ON p.id = coalesce(s.plan_id, (SELECT d.id FROM subscription_plans d WHERE d.is_default))
LEFT JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = h.event_type
CROSS JOIN LATERAL (
    SELECT CASE WHEN h.user_id IS NULL THEN $4
                ELSE coalesce(($3::bigint[])[array_position($2::text[], p.tier::text)], l.slots) END AS slots
) t
WHERE h.slots_in_use > greatest(h.granted_slots, t.slots)
LIMIT $1
