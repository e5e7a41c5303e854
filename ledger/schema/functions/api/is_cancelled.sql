-- Whether the cancellation of a job was requested.
-- Cost: one look-up by key.
-- Callers: weir_extend, weir_progress.
CREATE OR REPLACE FUNCTION is_cancelled(job_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM river_job j WHERE j.id = is_cancelled.job_id AND j.metadata ? 'cancel_attempted_at');
END
$$;
