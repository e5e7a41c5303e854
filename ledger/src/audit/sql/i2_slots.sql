-- Over both the tier's limit of today and the one in force when a slot was last given. $2 the limits of free, pro,
-- pro_plus, enterprise and of an anonymous address, which is the last.
SELECT format('holder %s, %s: %s slots in use, limit %s', h.holder, h.event_type, h.slots_in_use, greatest(h.granted_slots, t.slots))
FROM holders h
LEFT JOIN user_subscriptions s ON s.user_id = h.user_id AND s.status = 'active'
LEFT JOIN subscription_plans p ON p.id = s.plan_id
CROSS JOIN LATERAL (
    SELECT ($2::bigint[])[CASE WHEN h.user_id IS NULL THEN cardinality($2::bigint[])
                               ELSE array_position(enum_range(NULL::plan_tier), coalesce(p.tier, 'free')) END] AS slots
) t
WHERE h.slots_in_use > greatest(h.granted_slots, t.slots)
LIMIT $1
