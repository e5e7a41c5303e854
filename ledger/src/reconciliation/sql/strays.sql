-- Jobs of somebody's that could be claimed now and hold no slot: another River client inserted them, or River made a retry
-- available. $1 queues, $2 how many of each queue are looked at, the next to be claimed. A submitted job that somebody
-- made available again is not among them: the guard decides what it is charged.
SELECT j.id AS job_id, j.kind, j.args ->> 'user_id' AS user_id
FROM unnest($1::text[]) AS q (queue)
CROSS JOIN LATERAL (
    SELECT k.id, k.kind, k.args
    FROM river_job k
    WHERE k.state = 'available' AND k.queue = q.queue AND k.scheduled_at <= now() + interval '1 second'
    ORDER BY k.priority, k.scheduled_at, k.id
    LIMIT $2
) j
LEFT JOIN LATERAL (SELECT * FROM quota_reservations r WHERE r.job_id = j.id OFFSET 0) r ON true
WHERE r.admitted_at IS NULL AND r.due_at IS NULL AND jsonb_typeof(j.args -> 'user_id') = 'string'
  AND j.args ->> 'user_id' <> ''
  AND (r.job_id IS NOT NULL OR NOT EXISTS (SELECT 1 FROM submissions s WHERE s.job_id = j.id))
