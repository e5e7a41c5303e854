-- Gives free slots to the oldest parked jobs of the same holders. They become available now, at the tail of the lane of
-- their holder's current plan. Updates these holders' counters, including the freed slots. The caller holds the
-- holders' locks and has decided how many jobs each gets.
--
-- $1 holders, $2 meters, $3 how many jobs each gets, $4 lanes, $5 slot limits, $6 slots freed, $7 no longer parked;
-- distinct pairs. Returns the promoted jobs. Cost: one index range a holder, one primary key look-up a job. The cost
-- does not grow with the number of parked jobs.
-- Callers: pass_on_slots; ledger/src/settlement/statements.rs.
CREATE OR REPLACE FUNCTION promote_parked(uuid[], usage_event_type[], int[], text[], int[], int[], int[])
RETURNS TABLE (job_id bigint, attempt smallint, holder uuid, event_type usage_event_type)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH wanted AS MATERIALIZED (
        SELECT *
        FROM unnest($1::uuid[], $2::usage_event_type[], $3::int[], $4::text[], $5::int[], $6::int[], $7::int[])
            AS w (holder, event_type, n, lane, slot_limit, freed, unparked)
    ), picked AS MATERIALIZED (
        SELECT w.holder, w.event_type, w.lane, p.job_id
        FROM wanted w
        CROSS JOIN LATERAL (
            SELECT r.job_id
            FROM quota_reservations r
            WHERE r.holder = w.holder AND r.event_type = w.event_type AND r.parked_at IS NOT NULL
              AND (SELECT j.state IN ('pending', 'scheduled') FROM river_job j WHERE j.id = r.job_id)
            ORDER BY r.job_id
            LIMIT w.n
        ) p
    ), woken AS (
        UPDATE river_job j
        SET state = 'available',
            -- A retry gets its slot shortly before its scheduled time, which does not change.
            scheduled_at = CASE WHEN j.state = 'pending' THEN greatest(j.scheduled_at, clock_timestamp())
                                ELSE clock_timestamp() END,
            queue = queue_in_lane(j.queue, p.lane)
        FROM picked p
        WHERE j.id = p.job_id AND (j.state IN ('pending', 'scheduled')) IS TRUE
        RETURNING j.id, j.attempt, j.queue, p.holder, p.event_type
    ), admitted AS (
        UPDATE quota_reservations r
        SET admitted_at = clock_timestamp(), parked_at = NULL
        -- An array, so that the planner does not scan a table that was nearly empty at the last ANALYZE.
        WHERE r.job_id = ANY (ARRAY(SELECT w.id FROM woken w))
    ), counted AS (
        UPDATE holders h
        SET slots_in_use = h.slots_in_use - d.freed + d.n,
            parked = h.parked - d.unparked - d.n,
            granted_slots = CASE WHEN d.n > 0 THEN d.slot_limit ELSE h.granted_slots END,
            changes = h.changes + 1
        FROM (
            SELECT (SELECT k.ctid FROM holders k WHERE k.holder = each.holder AND k.event_type = each.event_type
                    ORDER BY k.generation DESC LIMIT 1) AS place,
                   sum(freed) AS freed, sum(unparked) AS unparked, sum(n) AS n,
                   max(slot_limit) AS slot_limit
            FROM (
                SELECT holder, event_type, freed, unparked, 0 AS n, slot_limit FROM wanted
                UNION ALL
                SELECT holder, event_type, 0, 0, 1, 0 FROM woken
            ) each
            GROUP BY each.holder, each.event_type
        ) d
        WHERE h.ctid = d.place
    ), notified AS (
        SELECT wake_queue(q.queue) FROM (SELECT DISTINCT queue FROM woken) q
    )
    SELECT w.id, w.attempt, w.holder, w.event_type FROM woken w WHERE (SELECT count(*) FROM notified) >= 0;
END
$$;
