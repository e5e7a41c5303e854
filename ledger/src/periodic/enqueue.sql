-- Creates the job of a tick, as River's own leader would. If several processes try, only the one that advances the row
-- creates it.
-- Parameters: $1 the periodic job, $2 the tick, $3 args, $4 kind, $5 max_attempts, $6 queue.
WITH moved AS (
    INSERT INTO periodic_jobs AS p (id, enqueued_until) VALUES ($1::text, $2::timestamptz)
    ON CONFLICT (id) DO UPDATE SET enqueued_until = excluded.enqueued_until
        WHERE p.enqueued_until < excluded.enqueued_until
    RETURNING p.id
), made AS (
    INSERT INTO river_job (args, kind, max_attempts, metadata, priority, queue, scheduled_at, state, tags)
    SELECT $3::jsonb, $4::text, $5::smallint, jsonb_build_object('periodic', true, 'river:periodic_job_id', m.id), 1,
           $6::text, $2::timestamptz, 'available', '{}'
    FROM moved m
    -- A leader of an earlier version enqueues on its own while processes are replaced one by one.
    WHERE NOT EXISTS (
        SELECT 1 FROM river_job j
        WHERE j.state IN ('available', 'running', 'retryable', 'completed', 'discarded') AND j.queue = $6
          AND j.priority = 1 AND j.scheduled_at = $2 AND j.metadata ->> 'river:periodic_job_id' = $1)
    RETURNING id
)
SELECT id FROM made
