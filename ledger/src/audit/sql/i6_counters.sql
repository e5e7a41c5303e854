SELECT format('holder %s, %s: slots %s, counted %s; parked %s, counted %s; parked from %s, first %s', holder, event_type,
              coalesce(h.slots_in_use, 0), coalesce(r.slots, 0), coalesce(h.parked, 0), coalesce(r.parked, 0),
              h.parked_from, r.first_parked),
       holder
FROM holders h
FULL JOIN (
    SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked,
           min(job_id) FILTER (WHERE parked_at IS NOT NULL) AS first_parked
    FROM quota_reservations GROUP BY 1, 2
) r USING (holder, event_type)
WHERE coalesce(h.slots_in_use, 0) <> coalesce(r.slots, 0) OR coalesce(h.parked, 0) <> coalesce(r.parked, 0)
   OR h.parked_from > r.first_parked
LIMIT $1
