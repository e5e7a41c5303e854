-- The reasons why jobs of each of these queues wait. Look-ups in River's index of (state, queue), in its order, so that
-- no statistics lead to a scan.
-- Parameters: $1 queues.
SELECT q.queue,
       EXISTS (SELECT 1 FROM river_job j WHERE j.state = 'available' AND j.queue = q.queue
                                           AND j.scheduled_at <= now()) AS due,
       -- Among this many pending jobs, at least one is parked.
       EXISTS (SELECT 1
               FROM (SELECT j.id, j.attempt, j.attempted_by FROM river_job j WHERE j.state = 'pending' AND j.queue = q.queue
                     ORDER BY j.priority, j.scheduled_at, j.id
                     LIMIT 1 + (SELECT count(*) FROM outstanding_jobs())) p
               WHERE NOT EXISTS (SELECT 1 FROM outstanding_answers(p.id, p.attempt, p.attempted_by))) AS parked,
       (SELECT count(*) FROM river_job j WHERE j.state = 'retryable' AND j.queue = q.queue) AS retrying,
       EXISTS (SELECT 1 FROM river_job j WHERE j.state IN ('available', 'scheduled') AND j.queue = q.queue
                                           AND j.scheduled_at > now()) AS later
FROM unnest($1::text[]) AS q (queue)
