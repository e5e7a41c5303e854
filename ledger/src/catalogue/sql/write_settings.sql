-- The environment's settings, for the SQL functions.
-- Parameters: $1 seconds that a reservation lives, $2 whether slots are counted, $3 slots by plan, $4 slots of a client
-- address.
UPDATE weir_settings s
SET reservation_ttl = make_interval(secs => $1::float8), counts_slots = $2, slots_of_plans = $3, anonymous_slots = $4
WHERE (s.reservation_ttl, s.counts_slots, s.slots_of_plans, s.anonymous_slots)
    IS DISTINCT FROM (make_interval(secs => $1::float8), $2, $3::jsonb, $4::int)
