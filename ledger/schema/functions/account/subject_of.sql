-- The text that names a user, or its id.
-- Cost: one look-up by key.
-- Callers: emit_job_ends, emit_plan_change, emit_renewals, emit_thresholds.
CREATE OR REPLACE FUNCTION subject_of(of_user uuid) RETURNS text LANGUAGE plpgsql STABLE STRICT
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN coalesce((SELECT u.subject FROM users u WHERE u.id = of_user), of_user::text);
END
$$;
