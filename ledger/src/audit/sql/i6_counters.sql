SELECT format('holder %s, %s: slots %s, counted %s; parked %s, counted %s', holder, event_type,
              coalesce(h.slots_in_use, 0), coalesce(r.slots, 0), coalesce(h.parked, 0), coalesce(r.parked, 0)),
       holder
FROM holders h
FULL JOIN (
    SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked
    FROM quota_reservations GROUP BY 1, 2
) r USING (holder, event_type)
WHERE coalesce(h.slots_in_use, 0) <> coalesce(r.slots, 0) OR coalesce(h.parked, 0) <> coalesce(r.parked, 0)
LIMIT $1
