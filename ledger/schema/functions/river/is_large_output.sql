-- Whether an output is stored in job_outputs and not in the job's metadata, where River indexes everything.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: weir_complete, settle_many.
CREATE OR REPLACE FUNCTION is_large_output(output jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT octet_length(output::text) > 4096
$$;
