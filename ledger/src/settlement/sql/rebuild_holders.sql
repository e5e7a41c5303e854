-- Sets the slot counters of holders to the counts of their reservations. The caller holds their locks.
-- Parameters: $1 holders.
UPDATE holders h
SET slots_in_use = c.slots, parked = c.parked, parked_from = 0
FROM (
    SELECT k.holder, k.event_type, count(r.admitted_at) AS slots, count(r.parked_at) AS parked
    FROM holders k
    LEFT JOIN quota_reservations r ON r.holder = k.holder AND r.event_type = k.event_type
    WHERE k.holder = ANY ($1::uuid[])
    GROUP BY 1, 2
) c
WHERE h.holder = c.holder AND h.event_type = c.event_type
