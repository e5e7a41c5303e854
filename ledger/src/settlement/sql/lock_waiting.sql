-- These holders under their locks. A holder that is locked right now is being settled and needs nothing.
-- $1 holders, $2 event types, pairwise.
SELECT h.holder, h.event_type, h.user_id, h.slots_in_use, h.parked, plan.tier, plan.lane, plan.slots, plan.own_slots
FROM (
    SELECT DISTINCT holder, event_type
    FROM unnest($1::uuid[], $2::usage_event_type[]) AS u (holder, event_type)
    ORDER BY 1, 2
) w
CROSS JOIN LATERAL (
    SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type
    OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED
) h
LEFT JOIN LATERAL plan_of(h.user_id, h.event_type, now()) plan ON h.user_id IS NOT NULL
