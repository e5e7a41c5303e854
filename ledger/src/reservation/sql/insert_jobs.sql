-- The jobs, as River's own client inserts them; a parked one, and one whose time has not come, is River's `pending`.
-- $1 ids, $2 args, $3 kinds, $4 max_attempts, $5 metadata, $6 queues, $7 states, $8 unique keys, $9 unique states,
-- $10 priorities, $11 when they are to start (null: at once).
INSERT INTO river_job
    (id, args, kind, max_attempts, metadata, priority, queue, state, scheduled_at, tags, unique_key, unique_states)
SELECT id, args, kind, max_attempts, metadata, priority, queue, state::river_job_state, coalesce(run_at, now()), '{}',
       unique_key, CASE WHEN unique_key IS NOT NULL THEN $9::text::bit(8) END
FROM unnest($1::bigint[], $2::jsonb[], $3::text[], $4::smallint[], $5::jsonb[], $6::text[], $7::text[],
            $8::bytea[], $10::smallint[], $11::timestamptz[])
    AS j (id, args, kind, max_attempts, metadata, queue, state, unique_key, priority, run_at)
