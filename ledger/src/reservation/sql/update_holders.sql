-- $1 holders, $2 meters, $3 slots taken, $4 jobs parked, $5 slot limits; distinct pairs, all of them locked, so
-- that a row's place (ctid) stays what it is.
UPDATE holders h
SET slots_in_use = h.slots_in_use + d.slots,
    parked = h.parked + d.parked,
    granted_slots = CASE WHEN d.slots > 0 THEN d.slot_limit ELSE h.granted_slots END,
    changes = h.changes + 1
FROM (
    SELECT u.slots, u.parked, u.slot_limit,
           (SELECT k.ctid FROM holders k WHERE k.holder = u.holder AND k.event_type = u.event_type
            ORDER BY k.generation DESC LIMIT 1) AS place
    FROM unnest($1::uuid[], $2::usage_event_type[], $3::int[], $4::int[], $5::int[])
        AS u (holder, event_type, slots, parked, slot_limit)
) d
WHERE h.ctid = d.place
