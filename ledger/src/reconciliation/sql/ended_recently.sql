-- Reservations of jobs that ended since $1, in any way, without the jobs $3. Parameters: $2 how many at most.
-- `by_others`: the last attempt was not made by a Weir process.
SELECT r.job_id, r.holder,
       NOT EXISTS (
           SELECT FROM processes p
           WHERE p.client_id = j.attempted_by[array_upper(j.attempted_by, 1)] AND p.client_id LIKE 'weir\_%'
       ) AS by_others
FROM river_job j
CROSS JOIN LATERAL (SELECT * FROM quota_reservations q WHERE q.job_id = j.id OFFSET 0) r
WHERE j.state IN ('cancelled', 'completed', 'discarded') AND j.finalized_at > $1 AND j.id <> ALL ($3)
LIMIT $2
