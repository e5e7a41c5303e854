-- Whether the job with this id was created at a different time than the caller expects. After a failover that lost
-- commits, a new job may have the id of a lost one. False when created_at is null or the job does not exist.
-- Cost: one look-up by key.
-- Callers: weir_complete, weir_fail, weir_progress, weir_extend.
CREATE OR REPLACE FUNCTION is_another_job(job_id bigint, created_at timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN is_another_job.created_at IS NOT NULL
       AND EXISTS (SELECT 1 FROM river_job j
                   WHERE j.id = is_another_job.job_id AND j.created_at <> is_another_job.created_at);
END
$$;
