-- $1 holders, $2 event types, $3 slots taken, $4 jobs parked, $5 slot limits; distinct pairs.
UPDATE holders h
SET slots_in_use = h.slots_in_use + d.slots,
    parked = h.parked + d.parked,
    granted_slots = CASE WHEN d.slots > 0 THEN d.slot_limit ELSE h.granted_slots END
FROM unnest($1::uuid[], $2::usage_event_type[], $3::int[], $4::int[], $5::int[])
    AS d (holder, event_type, slots, parked, slot_limit)
WHERE h.holder = d.holder AND h.event_type = d.event_type
