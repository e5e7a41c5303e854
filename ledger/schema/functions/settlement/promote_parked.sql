-- Gives free slots to the oldest parked jobs of the same holders. They become available now, at the tail of the lane of
-- their holder's current plan. Updates these holders' counters, including the freed slots. The caller holds the
-- holders' locks and has decided how many jobs each gets.
--
-- $1 holders, $2 meters, $3 how many jobs each gets, $4 lanes, $5 slot limits, $6 slots freed, $7 no longer parked;
-- distinct pairs. Returns the promoted jobs. Does not notify workers. Cost: two index ranges a holder, one primary key look-up a job. The cost
-- does not grow with the number of parked jobs. Promoted ones cost nothing, even while a session holds an old snapshot
-- (see holders.parked_from). They do after an older job was parked, or while the first one cannot start.
-- Callers: pass_on_slots; ledger/src/settlement/statements.rs.
CREATE OR REPLACE FUNCTION promote_parked(uuid[], usage_event_type[], int[], text[], int[], int[], int[])
RETURNS TABLE (job_id bigint, attempt smallint, holder uuid, event_type usage_event_type, queue text)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    -- The comparisons of rows and the orders have the columns of quota_reservations_parked. With equality, the planner
    -- may walk over all holders' reservations by the primary key.
    WITH wanted AS MATERIALIZED (
        SELECT w.*, h.place, h.parked_from,
               (SELECT r.job_id FROM quota_reservations r
                WHERE r.parked_at IS NOT NULL
                  AND (r.holder, r.event_type, r.job_id) >= (w.holder, w.event_type, h.parked_from)
                  AND (r.holder, r.event_type, r.job_id) <= (w.holder, w.event_type, 9223372036854775807)
                ORDER BY r.holder, r.event_type, r.job_id
                LIMIT 1) AS first_parked
        FROM unnest($1::uuid[], $2::usage_event_type[], $3::int[], $4::text[], $5::int[], $6::int[], $7::int[])
            AS w (holder, event_type, n, lane, slot_limit, freed, unparked)
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place, k.parked_from FROM holders k
            WHERE k.holder = w.holder AND k.event_type = w.event_type
            ORDER BY k.generation DESC LIMIT 1
        ) h
    ), picked AS MATERIALIZED (
        SELECT w.holder, w.event_type, w.place, w.lane, p.job_id
        FROM wanted w
        CROSS JOIN LATERAL (
            SELECT r.job_id
            FROM quota_reservations r
            WHERE r.parked_at IS NOT NULL
              AND (r.holder, r.event_type, r.job_id) >= (w.holder, w.event_type, w.first_parked)
              AND (r.holder, r.event_type, r.job_id) <= (w.holder, w.event_type, 9223372036854775807)
              AND (SELECT j.state IN ('pending', 'scheduled') FROM river_job j WHERE j.id = r.job_id)
            ORDER BY r.holder, r.event_type, r.job_id
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
        RETURNING j.id, j.attempt, j.queue, p.holder, p.event_type, p.place
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
            -- The next promotion starts at the job that was the first. If too few jobs were found, it looks at all
            -- parked jobs once, in case another program left a wrong start.
            parked_from = CASE WHEN d.n < d.wanted AND d.parked_from > 0 THEN 0
                               ELSE coalesce(d.first_parked, h.parked_from) END,
            changes = h.changes + 1
        FROM (
            SELECT place, sum(freed) AS freed, sum(unparked) AS unparked, sum(n) AS n, sum(wanted) AS wanted,
                   max(slot_limit) AS slot_limit, max(parked_from) AS parked_from, max(first_parked) AS first_parked
            FROM (
                SELECT place, freed, unparked, 0 AS n, n AS wanted, slot_limit, parked_from, first_parked FROM wanted
                UNION ALL
                SELECT place, 0, 0, 1, 0, 0, NULL, NULL FROM woken
            ) each
            GROUP BY place
        ) d
        WHERE h.ctid = d.place
    )
    SELECT w.id, w.attempt, w.holder, w.event_type, w.queue FROM woken w;
END
$$;
