-- Reservations by meter, by their owner's current plan and, for owners with parked jobs, by the queue of the oldest
-- one. Admitted reservations hold a slot, parked ones wait for one, and the others are between two attempts. One pass
-- over the unfinished jobs, and one look-up by key for each owner with parked jobs.
SELECT g.event_type::text AS meter,
       t.tier AS plan,
       j.queue AS parked_in,
       sum(g.admitted)::float8 AS admitted,
       sum(g.parked)::float8 AS parked,
       sum(g.between)::float8 AS between_attempts,
       coalesce(extract(epoch FROM clock_timestamp() - min(g.parked_since)), 0)::float8 AS oldest_parked
FROM (
    SELECT event_type, user_id,
           count(admitted_at) AS admitted,
           count(parked_at) AS parked,
           count(*) FILTER (WHERE admitted_at IS NULL AND parked_at IS NULL) AS between,
           min(parked_at) AS parked_since,
           min(job_id) FILTER (WHERE parked_at IS NOT NULL) AS oldest_job
    FROM quota_reservations
    GROUP BY 1, 2
) g
CROSS JOIN LATERAL tier_of(g.user_id, now()) t
-- The subquery makes the planner look the row up by key, independent of statistics.
LEFT JOIN LATERAL (SELECT o.queue FROM river_job o WHERE o.id = g.oldest_job LIMIT 1) j ON true
GROUP BY 1, 2, 3
