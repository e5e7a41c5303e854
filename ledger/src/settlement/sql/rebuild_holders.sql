-- Sets the slot counters of one holder to the counts of its reservations. The caller holds its locks.
-- Parameters: $1 holder.
UPDATE holders h
SET slots_in_use = c.slots, parked = c.parked, parked_from = 0
FROM (
    SELECT k.event_type, count(r.admitted_at) AS slots, count(r.parked_at) AS parked
    FROM holders k
    LEFT JOIN quota_reservations r ON r.holder = k.holder AND r.event_type = k.event_type
    WHERE k.holder = $1
    GROUP BY 1
) c
WHERE h.holder = $1 AND h.event_type = c.event_type
