-- The unparked jobs of all lanes, by queue and by their owner's current plan. `unknown` is a job of another River
-- client that no worker has seen yet. Parked jobs are not read, because there may be very many. The columns count jobs
-- that wait, run, have an outstanding answer, or run on a lent worker, and give the longest wait of a job that could run, in seconds.
SELECT w.queue,
       CASE WHEN w.unseen THEN 'unknown' ELSE t.tier END AS plan,
       sum(w.queued)::float8 AS queued,
       sum(w.running)::float8 AS running,
       sum(w.outstanding)::float8 AS outstanding,
       sum(w.lent)::float8 AS lent,
       coalesce(extract(epoch FROM now() - min(w.oldest)), 0)::float8 AS oldest_wait
FROM (
    SELECT j.queue, r.user_id, r.job_id IS NULL AS unseen,
           count(*) FILTER (WHERE j.state <> 'running') AS queued,
           count(*) FILTER (WHERE j.state = 'running') AS running,
           0 AS outstanding,
           count(*) FILTER (WHERE j.state = 'running' AND j.metadata ->> 'weir:lent' = j.attempt::text) AS lent,
           min(j.scheduled_at) FILTER (WHERE j.state = 'available' AND j.scheduled_at <= now()) AS oldest
    FROM river_job j
    -- Look-ups, because few reservations belong to these jobs.
    LEFT JOIN LATERAL (SELECT q.job_id, q.user_id FROM quota_reservations q WHERE q.job_id = j.id LIMIT 1) r ON true
    WHERE j.state IN ('available', 'running', 'retryable', 'scheduled')
    GROUP BY 1, 2, 3
    UNION ALL
    SELECT o.queue, r.user_id, r.job_id IS NULL, 0, 0, count(*), 0, NULL
    FROM outstanding_jobs() o
    LEFT JOIN quota_reservations r ON r.job_id = o.job_id
    GROUP BY 1, 2, 3
) w
CROSS JOIN LATERAL tier_of(w.user_id, now()) t
GROUP BY 1, 2
