-- Above both the plan's current limit and the limit in force when a slot was last given.
-- Parameters: $2 plans with configured slots, $3 those slots, $4 the slots of a client address.
SELECT format('holder %s, %s: %s slots in use, limit %s', h.holder, h.event_type, h.slots_in_use, greatest(h.granted_slots, t.slots))
FROM holders h
LEFT JOIN LATERAL plan_of(h.user_id, h.event_type, now()) p ON h.user_id IS NOT NULL
CROSS JOIN LATERAL (
    SELECT slot_limit(p.tier, p.own_slots, ($3::bigint[])[array_position($2::text[], p.tier)], p.slots, $4) AS slots
) t
WHERE h.slots_in_use > greatest(h.granted_slots, t.slots)
LIMIT $1
