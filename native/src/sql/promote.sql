-- Gives free slots to the oldest parked jobs of the same holder, which become available now, at the tail of the
-- lane that the user's tier has now. The caller holds the holders' locks.
-- $1 holders, $2 event types, $3 how many each, $4 lanes, $5 slot limits; distinct pairs.
--
-- One index range a holder, one primary key look-up a job: nothing here grows with the number of parked jobs.
WITH picked AS MATERIALIZED (
    SELECT w.holder, w.event_type, w.lane, w.slot_limit, p.job_id
    FROM unnest($1::uuid[], $2::usage_event_type[], $3::int[], $4::text[], $5::int[])
        AS w (holder, event_type, n, lane, slot_limit)
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
        scheduled_at = now(),
        queue = CASE WHEN j.queue LIKE '%\_scheduled' THEN j.queue
                     ELSE regexp_replace(j.queue, '_(priority|default)$', '_' || p.lane) END
    FROM picked p
    WHERE j.id = p.job_id AND j.state IN ('pending', 'scheduled')
    RETURNING j.id, j.queue, p.holder, p.event_type, p.slot_limit
), admitted AS (
    UPDATE quota_reservations r
    SET admitted_at = clock_timestamp(), parked_at = NULL
    FROM woken w
    WHERE r.job_id = w.id
), booked AS (
    UPDATE holders h
    SET slots_in_use = h.slots_in_use + d.n, parked = h.parked - d.n, granted_slots = d.slot_limit
    FROM (SELECT holder, event_type, slot_limit, count(*)::int AS n FROM woken GROUP BY 1, 2, 3) d
    WHERE h.holder = d.holder AND h.event_type = d.event_type
), told AS (
    SELECT pg_notify(current_schema() || '.river_insert', json_build_object('queue', q.queue)::text)
    FROM (SELECT DISTINCT queue FROM woken) q
)
SELECT w.id, (SELECT count(*) FROM told) FROM woken w
