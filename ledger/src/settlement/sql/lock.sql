-- Takes the same locks as a reservation, in the same order, and reads the locked rows, with each holder's current plan.
-- Parameters: $1 job ids, $2 holders not to wait for; $3 holders, $4 meters, pairwise, which need no job.
SELECT h.holder, h.event_type, h.user_id, h.slots_in_use, h.parked, plan.tier, plan.lane, plan.slots, plan.own_slots
FROM (
    SELECT holder, event_type FROM quota_reservations WHERE job_id = ANY ($1::bigint[]) AND holder <> ALL ($2::uuid[])
    UNION
    SELECT holder, event_type FROM unnest($3::uuid[], $4::usage_event_type[]) AS u (holder, event_type)
    ORDER BY 1, 2
) w
CROSS JOIN LATERAL (
    SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type
    ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE
) h
LEFT JOIN LATERAL plan_of(h.user_id, h.event_type, now()) plan ON h.user_id IS NOT NULL
