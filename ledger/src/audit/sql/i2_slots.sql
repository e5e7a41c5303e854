-- Above both the plan's current limit and the limit in force when a slot was last given.
SELECT format('holder %s, %s: %s slots in use, limit %s', h.holder, h.event_type, h.slots_in_use, greatest(h.granted_slots, t.slots))
FROM holders h
LEFT JOIN LATERAL plan_of(h.user_id, h.event_type, now()) p ON h.user_id IS NOT NULL
CROSS JOIN LATERAL (
    SELECT slots_in_force(h.user_id, p.tier, p.slots, p.own_slots) AS slots
) t
WHERE h.slots_in_use > greatest(h.granted_slots, t.slots)
LIMIT $1
