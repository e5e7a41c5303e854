-- Why a handler gave a job up for good, unless a later attempt failed otherwise. Replaces River's own error, which
-- says only that the worker gave up.
-- Callers: emit_job_ends, error_of.
CREATE OR REPLACE FUNCTION reason_of(metadata jsonb, errors jsonb[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN CASE WHEN metadata ->> 'weir:reason_attempt' ~ '^[0-9]{1,5}$'
                          THEN (metadata ->> 'weir:reason_attempt')::int
                               >= coalesce((errors[array_upper(errors, 1)] ->> 'attempt')::int, 0)
                          ELSE true END
                THEN metadata ->> 'weir:reason' END
$$;
