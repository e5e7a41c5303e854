-- The jobs, as River's own client inserts them; a parked one is River's `pending`.
-- $1 ids, $2 args, $3 kinds, $4 max_attempts, $5 metadata, $6 queues, $7 states.
INSERT INTO river_job (id, args, kind, max_attempts, metadata, priority, queue, state, tags)
SELECT id, args, kind, max_attempts, metadata, 1, queue, state::river_job_state, '{}'
FROM unnest($1::bigint[], $2::jsonb[], $3::text[], $4::smallint[], $5::jsonb[], $6::text[], $7::text[])
    AS j (id, args, kind, max_attempts, metadata, queue, state)
