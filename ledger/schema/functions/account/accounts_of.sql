-- Accounts as submit_many() decides on them: the columns of account_of(), and these.
--
-- - place, slots_in_use, parked, month: those of the parameters. In a dry run, the account may not exist: place is null.
-- - max_waiting, scheduled: the plan's limit of waiting jobs, and with one, the number of scheduled jobs.
-- - slot_limit: the slots in force.
--
-- One SELECT, not STRICT and without SET, so that the planner inlines it.
-- Errors: P0001 when a plan has no limits for a meter.
-- Cost: as account_of() for each account.
-- Callers: submit_many.
CREATE OR REPLACE FUNCTION accounts_of(of_holders uuid[], meters usage_event_type[], users uuid[], places tid[],
                                       slots int[], parked_jobs int[], months timestamptz[], draws boolean, of_windows smallint, at timestamptz)
RETURNS TABLE (place tid, slots_in_use int, parked int, month timestamptz, tier text, lane text, counted smallint, spans text[],
               starts timestamptz[], ends timestamptz[], limits bigint[], ceilings bigint[], used_in bigint[],
               reserved_in bigint[], from_grants bigint, granted bigint, room numeric, capacity numeric,
               plan_left numeric, burst int, max_waiting int, scheduled int, slot_limit bigint)
LANGUAGE sql STABLE AS $$
    SELECT w.place, coalesce(w.slots, 0), coalesce(w.parked, 0), w.month, a.tier, a.lane, coalesce(of_windows, a.counted), a.spans,
           a.starts, a.ends, a.limits, a.ceilings, a.used_in, a.reserved_in, a.from_grants, a.granted, a.room,
           a.capacity, a.plan_left, a.burst, (a.attributes).max_waiting,
           CASE WHEN (a.attributes).max_waiting IS NOT NULL
               THEN count_scheduled(w.holder, w.meter, (a.attributes).max_waiting - coalesce(w.parked, 0))
           END,
           coalesce(a.slots_now, CASE WHEN w.user_id IS NOT NULL THEN raise_no_limits(w.meter)
                                      ELSE slots_in_force(NULL, NULL, NULL, NULL) END)
    FROM (
        SELECT * FROM unnest(of_holders, meters, users, places, slots, parked_jobs, months)
            AS u (holder, meter, user_id, place, slots, parked, month)
        ORDER BY 1, 2
    ) w
    LEFT JOIN LATERAL account_of(w.user_id, w.meter, draws, at, NULL, of_windows) a ON true
    ORDER BY w.holder, w.meter
$$;
