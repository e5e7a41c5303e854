-- The holders with unfinished jobs. Reads all reservations, one per unfinished job, and looks up running jobs by
-- River's index of states.
-- Parameters: $1 whether holders with the most running jobs come first, $2 how many holders.
SELECT held.holder, (SELECT u.subject FROM users u WHERE u.id = held.user_id) AS subject, held.waiting, held.parked, held.running, held.oldest_turn_ms,
       (SELECT t.tier FROM tier_of(held.user_id, now()) t) AS plan
FROM (
    SELECT r.holder,
           (array_agg(r.user_id))[1] AS user_id,
           count(*) - count(j.id) AS waiting,
           count(r.parked_at) AS parked,
           count(j.id) AS running,
           coalesce((1000 * extract(epoch FROM clock_timestamp() - min(r.parked_at)))::bigint, 0) AS oldest_turn_ms
    FROM quota_reservations r
    LEFT JOIN (SELECT id FROM river_job WHERE state = 'running' UNION SELECT job_id FROM outstanding_jobs()) j ON j.id = r.job_id
    GROUP BY r.holder
    ORDER BY CASE WHEN $1 THEN count(j.id) ELSE count(*) - count(j.id) END DESC, count(*) DESC, r.holder
    LIMIT $2
) held
ORDER BY CASE WHEN $1 THEN held.running ELSE held.waiting END DESC, held.running + held.waiting DESC, held.holder
