-- Inserts jobs as River's own client does. A parked job, or one with a later start, has River's state `pending`.
-- Parameters:
--
-- - $1 to $6: ids, args, kinds, max_attempts, metadata, queues.
-- - $7 to $10: states, unique keys, unique states, priorities.
-- - $11: start times (null: immediately).
INSERT INTO river_job
    (id, args, kind, max_attempts, metadata, priority, queue, state, scheduled_at, tags, unique_key, unique_states)
SELECT id, args, kind, max_attempts, metadata, priority, queue, state::river_job_state, coalesce(run_at, now()), '{}',
       unique_key, CASE WHEN unique_key IS NOT NULL THEN $9::text::bit(8) END
FROM unnest($1::bigint[], $2::jsonb[], $3::text[], $4::smallint[], $5::jsonb[], $6::text[], $7::text[],
            $8::bytea[], $10::smallint[], $11::timestamptz[])
    AS j (id, args, kind, max_attempts, metadata, queue, state, unique_key, priority, run_at)
