-- What waits in each of these queues, by look-ups in River's index of (state, queue). $1 queues.
SELECT q.queue,
       EXISTS (SELECT 1 FROM river_job j WHERE j.state = 'available' AND j.queue = q.queue
                                           AND j.scheduled_at <= now()) AS due,
       EXISTS (SELECT 1 FROM river_job j WHERE j.state = 'pending' AND j.queue = q.queue
                 AND NOT EXISTS (SELECT 1 FROM outstanding_attempts o WHERE o.job_id = j.id)) AS parked,
       (SELECT count(*) FROM river_job j WHERE j.state = 'retryable' AND j.queue = q.queue) AS retrying,
       EXISTS (SELECT 1 FROM river_job j WHERE j.state IN ('available', 'scheduled') AND j.queue = q.queue
                                           AND j.scheduled_at > now()) AS later
FROM unnest($1::text[]) AS q (queue)
