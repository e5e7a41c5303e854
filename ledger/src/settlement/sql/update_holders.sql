-- Frees slots of holders without parked jobs. The caller holds the holders' locks, so a row stays at its place (ctid).
-- pass_on_slots() does this for SQL callers.
-- Parameters: $1 holders, $2 meters, $3 slots, $4 no longer parked; distinct pairs.
UPDATE holders h
SET slots_in_use = h.slots_in_use - d.slots, parked = h.parked - d.parked, changes = h.changes + 1
FROM (
    SELECT u.slots, u.parked,
           (SELECT k.ctid FROM holders k WHERE k.holder = u.holder AND k.event_type = u.event_type
            ORDER BY k.generation DESC LIMIT 1) AS place
    FROM unnest($1::uuid[], $2::usage_event_type[], $3::int[], $4::int[]) AS u (holder, event_type, slots, parked)
) d
WHERE h.ctid = d.place
