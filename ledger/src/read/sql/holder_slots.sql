-- A holder's jobs of each meter.
-- Parameters: $1 holder. Looks up rows by key, and running jobs by River's index of states. Also reads all outstanding
-- attempts.
SELECT h.event_type AS meter, h.slots_in_use::bigint AS slots_in_use, h.parked::bigint AS parked,
       CASE WHEN h.user_id IS NULL THEN nullif(slots_in_force(NULL, NULL, NULL, NULL), 2147483647)::bigint END AS slots_of_address,
       (SELECT count(*) FROM river_job j JOIN quota_reservations r ON r.job_id = j.id
        WHERE j.state = 'running' AND r.holder = h.holder AND r.event_type = h.event_type)
       + (SELECT count(*) FROM outstanding_jobs() o
          CROSS JOIN LATERAL (SELECT k.holder, k.event_type FROM quota_reservations k WHERE k.job_id = o.job_id OFFSET 0) r
          WHERE r.holder = h.holder AND r.event_type = h.event_type) AS running
FROM holders h
WHERE h.holder = $1
ORDER BY h.event_type
