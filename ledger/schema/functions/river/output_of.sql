-- A job's output, from either place where it may be stored.
-- Cost: one look-up by key.
-- Callers: ledger/src/read/jobs.rs.
CREATE OR REPLACE FUNCTION output_of(job_id bigint) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN coalesce(
        (SELECT j.metadata -> 'output' FROM river_job j WHERE j.id = output_of.job_id),
        (SELECT o.output FROM job_outputs o WHERE o.job_id = output_of.job_id),
        (SELECT f.output FROM finished_jobs f WHERE f.job_id = output_of.job_id));
END
$$;
