-- Claimable jobs that belong to a holder and have no slot. Another River client inserted them, River made a retry
-- available, or an operator made a submitted job available. `needs_late_admission`: the job was parked before, or was submitted and
-- has released its quota and slot. Parameters:
--
-- - $1: queues.
-- - $2: kinds.
-- - $3: how many jobs to return per queue, in the order of claims.
-- - $4: how many jobs to read per queue. Jobs of unknown kinds and jobs without an owner stay where they are, and count
--   only here.
SELECT j.id AS job_id, j.kind, j.args ->> 'user_id' AS user_id,
       r.parked_at IS NOT NULL OR r.ended_at IS NOT NULL AS needs_late_admission,
       r.holder, r.event_type, r.user_id AS account
FROM unnest($1::text[]) AS q (queue)
CROSS JOIN LATERAL (
    SELECT n.id, n.kind, n.args
    FROM (
        SELECT k.id, k.kind, k.args, k.priority, k.scheduled_at
        FROM river_job k
        WHERE k.state = 'available' AND k.queue = q.queue AND k.scheduled_at <= now() + interval '1 second'
        ORDER BY k.priority, k.scheduled_at, k.id
        LIMIT $4
    ) n
    WHERE n.kind = ANY ($2) AND jsonb_typeof(n.args -> 'user_id') = 'string' AND n.args ->> 'user_id' <> ''
       OR (SELECT true FROM weir_jobs r WHERE r.job_id = n.id)
    ORDER BY n.priority, n.scheduled_at, n.id
    LIMIT $3
) j
LEFT JOIN LATERAL (
    -- A job of another client that has ended is unknown again.
    SELECT * FROM weir_jobs r WHERE r.job_id = j.id AND (r.ended_at IS NULL OR r.submitted_at IS NOT NULL) OFFSET 0
) r ON true
WHERE r.parked_at IS NOT NULL
   -- A deleted user's job must not run.
   OR r.ended_at IS NOT NULL AND (r.user_id IS NULL OR EXISTS (SELECT 1 FROM users u WHERE u.id = r.user_id))
   OR r.ended_at IS NULL AND r.admitted_at IS NULL AND r.due_at IS NULL AND r.parked_at IS NULL
      AND jsonb_typeof(j.args -> 'user_id') = 'string' AND j.args ->> 'user_id' <> ''
