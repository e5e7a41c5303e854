-- Updates the counters of holders. All pairs are distinct and locked, so a row stays at its place (ctid).
-- Parameters: $1 holders, $2 meters, $3 slots to use, $4 jobs to park, $5 slot limits; $6: no job to
-- park has a smaller id.
UPDATE holders h
SET slots_in_use = h.slots_in_use + d.slots,
    parked = h.parked + d.parked,
    granted_slots = CASE WHEN d.slots > 0 THEN d.slot_limit ELSE h.granted_slots END,
    parked_from = least(h.parked_from, $6::bigint),
    changes = h.changes + 1
FROM (
    SELECT u.slots, u.parked, u.slot_limit,
           (SELECT k.ctid FROM holders k WHERE k.holder = u.holder AND k.event_type = u.event_type
            ORDER BY k.generation DESC LIMIT 1) AS place
    FROM unnest($1::uuid[], $2::usage_event_type[], $3::int[], $4::int[], $5::int[])
        AS u (holder, event_type, slots, parked, slot_limit)
) d
WHERE h.ctid = d.place
