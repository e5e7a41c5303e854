-- The seconds until the next attempt: by the service's retry policy, else River's, spread by 10 %.
-- errors: how many attempts failed before this one. Rust computes the same in native/src/work/retry.rs.
-- Cost: a scan of weir_services, which has one row a service.
-- Callers: fail_attempt.
CREATE OR REPLACE FUNCTION retry_pause(job_kind text, errors int) RETURNS double precision
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN coalesce(
        (SELECT least(s.retry_base * power(s.retry_factor, least(errors, 1000))
                          * power(least(errors, 1000) + 1, s.retry_power), s.retry_max)
         FROM weir_services s WHERE s.kind = job_kind AND s.retry_base IS NOT NULL LIMIT 1),
        power(least(errors, 1000) + 1, 4)) * (0.9 + 0.2 * random());
END
$$;
