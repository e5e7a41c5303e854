-- Gives free slots to the oldest parked jobs of the same holder, which become available now, at the tail of the
-- lane that the user's tier has now; and books, in the same update, the slots that were freed for them. The caller
-- holds the holders' locks.
-- $1 holders, $2 event types, $3 how many each, $4 lanes, $5 slot limits, $6 slots freed, $7 no longer parked;
-- distinct pairs. $8 the priority and default queues of the services.
--
-- One index range a holder, one primary key look-up a job: nothing here grows with the number of parked jobs.
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
        -- A retry has its slot shortly before its time, and keeps the time.
        scheduled_at = CASE WHEN j.state = 'pending' THEN greatest(j.scheduled_at, now()) ELSE now() END,
        -- Only the queues of Weir's own lanes are changed: another client's queue may be called x_default.
        queue = CASE WHEN j.queue = ANY ($8::text[]) THEN regexp_replace(j.queue, '_(priority|default)$', '_' || p.lane)
                     ELSE j.queue END
    FROM picked p
    WHERE j.id = p.job_id AND (j.state IN ('pending', 'scheduled')) IS TRUE
    RETURNING j.id, j.attempt, j.queue, p.holder, p.event_type
), admitted AS (
    UPDATE quota_reservations r
    SET admitted_at = clock_timestamp(), parked_at = NULL
    FROM woken w
    WHERE r.job_id = w.id
), booked AS (
    UPDATE holders h
    SET slots_in_use = h.slots_in_use - d.freed + d.n,
        parked = h.parked - d.unparked - d.n,
        granted_slots = CASE WHEN d.n > 0 THEN d.slot_limit ELSE h.granted_slots END
    FROM (
        SELECT holder, event_type, sum(freed) AS freed, sum(unparked) AS unparked, sum(n) AS n,
               max(slot_limit) AS slot_limit
        FROM (
            SELECT holder, event_type, freed, unparked, 0 AS n, slot_limit FROM wanted
            UNION ALL
            SELECT holder, event_type, 0, 0, 1, 0 FROM woken
        ) each
        GROUP BY 1, 2
    ) d
    WHERE h.holder = d.holder AND h.event_type = d.event_type
), told AS (
    SELECT pg_notify(river_channel('river_insert'), json_build_object('queue', q.queue)::text)
    FROM (SELECT DISTINCT queue FROM woken) q
)
SELECT w.id AS job_id, w.attempt, w.holder, w.event_type, (SELECT count(*) FROM told) AS told FROM woken w
