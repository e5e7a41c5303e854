-- Slots that were freed and that nobody waits for. $1 holders, $2 meters, $3 slots, $4 no longer parked; distinct
-- pairs. The caller holds the holders' locks.
UPDATE holders h
SET slots_in_use = h.slots_in_use - d.slots, parked = h.parked - d.parked
FROM unnest($1::uuid[], $2::usage_event_type[], $3::int[], $4::int[]) AS d (holder, event_type, slots, parked)
WHERE h.holder = d.holder AND h.event_type = d.event_type
