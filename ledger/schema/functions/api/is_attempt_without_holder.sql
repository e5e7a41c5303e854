-- Whether this attempt is running and belongs to a service's job without a reservation.
-- Cost: three look-ups by key.
-- Callers: weir_extend, weir_progress.
CREATE OR REPLACE FUNCTION is_attempt_without_holder(job_id bigint, attempt int)
RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN NOT EXISTS (SELECT 1 FROM quota_reservations q WHERE q.job_id = is_attempt_without_holder.job_id)
       AND EXISTS (SELECT 1 FROM river_job j
                   WHERE j.id = is_attempt_without_holder.job_id AND j.attempt = is_attempt_without_holder.attempt
                     AND (j.state = 'running') IS TRUE AND is_service_kind(j.kind));
END
$$;
