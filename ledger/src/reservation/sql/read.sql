-- The accounts under the locks. `short_spans` and the arrays next to it are the windows other than the month; most
-- meters have none.
-- Parameters: $1 holders, $2 meters, pairwise and distinct.
SELECT w.n AS position,
       h.slots_in_use,
       h.parked,
       clock.at,
       a.tier,
       a.lane,
       coalesce(a.slots, CASE WHEN h.user_id IS NOT NULL THEN raise_no_limits(h.event_type) END) AS slots,
       a.own_slots,
       (a.attributes).max_waiting,
       CASE WHEN (a.attributes).max_waiting IS NOT NULL
           THEN count_scheduled(w.holder, w.event_type, (a.attributes).max_waiting - h.parked) END AS scheduled,
       a.period_start,
       a.period_end,
       a.monthly_limit,
       a.monthly_ceiling,
       a.used,
       a.reserved,
       a.from_grants,
       a.granted,
       a.grant_ids,
       a.grant_amounts,
       a.grant_ends,
       a.grant_starts,
       a.short_spans,
       a.short_limits,
       a.short_ceilings,
       a.short_used,
       a.short_reserved
FROM unnest($1::uuid[], $2::usage_event_type[]) WITH ORDINALITY AS w (holder, event_type, n)
CROSS JOIN LATERAL (
    SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type
    ORDER BY k.generation DESC LIMIT 1
) h
CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
LEFT JOIN LATERAL account_of(h.user_id, h.event_type, h.has_grants, clock.at) a ON true
