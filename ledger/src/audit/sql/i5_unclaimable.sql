-- Jobs with a slot that no worker can claim. A job of another River client may be in a queue of that client, and River
-- records the queues that its clients work.
SELECT format('job %s of holder %s holds a slot in the queue %s with the kind %s, which no service works', j.id, r.holder,
              j.queue, j.kind)
FROM quota_reservations r
JOIN river_job j ON j.id = r.job_id
WHERE r.admitted_at IS NOT NULL AND j.state = 'available'
  AND NOT EXISTS (SELECT 1 FROM weir_services s
                  WHERE j.kind = s.kind AND j.queue IN (s.name || '_priority', s.name || '_default', s.name || '_scheduled'))
  AND NOT EXISTS (SELECT 1 FROM river_queue q WHERE q.name = j.queue AND q.updated_at > now() - interval '1 hour')
UNION ALL
-- i5_kept_slots.sql checks jobs that have run.
SELECT format('job %s of holder %s holds a slot and starts at %s', j.id, r.holder, j.scheduled_at)
FROM quota_reservations r
JOIN river_job j ON j.id = r.job_id
WHERE r.admitted_at IS NOT NULL AND j.state IN ('available', 'scheduled') AND j.attempted_at IS NULL
  AND j.scheduled_at > now() + interval '1 hour'
LIMIT $1
