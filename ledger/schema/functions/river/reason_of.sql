-- The reason a handler gave when it discarded a job, unless a later attempt failed differently. Replaces River's error,
-- which only reports that the worker gave up.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: emit_job_ends, error_of.
CREATE OR REPLACE FUNCTION reason_of(metadata jsonb, errors jsonb[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN CASE WHEN metadata ->> 'weir:reason_attempt' ~ '^[0-9]{1,5}$'
                          THEN (metadata ->> 'weir:reason_attempt')::int
                               >= coalesce((errors[array_upper(errors, 1)] ->> 'attempt')::int, 0)
                          ELSE true END
                THEN metadata ->> 'weir:reason' END
$$;
