-- Accounts of a meter with waiting jobs, whose plans use this lane, and that may use more idle workers than they do.
--
-- Returns at most 64, and reads at most 128 from a random one on, so that its cost has a bound and each account has its
-- turn. While workers are idle, few accounts have waiting jobs: nearly all of them have jobs on as many workers as they have
-- slots.
-- Cost: for each account the look-ups of plan_of().
-- Callers: lend_jobs, await_unclaimed.
CREATE OR REPLACE FUNCTION accounts_to_lend_to(meter usage_event_type, of_lane text)
RETURNS TABLE (holder uuid, slots_in_use int, parked int, slots int, burst int, changes bigint)
LANGUAGE plpgsql STABLE ROWS 10
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    first CONSTANT uuid := gen_random_uuid();
BEGIN
    RETURN QUERY
    SELECT h.holder, h.slots_in_use, h.parked, t.slots, p.burst, h.changes
    FROM (
        (SELECT * FROM waiting_accounts a WHERE a.event_type = meter AND a.holder >= first ORDER BY a.event_type, a.holder LIMIT 128)
        UNION ALL
        (SELECT * FROM waiting_accounts a WHERE a.event_type = meter AND a.holder < first ORDER BY a.event_type, a.holder LIMIT 128)
        LIMIT 128
    ) w
    CROSS JOIN LATERAL (
        SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type
        ORDER BY k.generation DESC LIMIT 1
    ) h
    CROSS JOIN LATERAL plan_of(h.user_id, h.event_type, now()) p
    CROSS JOIN LATERAL (SELECT slots_in_force(h.user_id, p.tier, p.slots, p.own_slots) AS slots) t
    WHERE h.parked > 0 AND p.lane = of_lane AND p.burst > greatest(h.slots_in_use, t.slots)
    LIMIT 64;
END
$$;
