-- Raises 22023 for a service that does not exist, with the existing ones as the hint.
-- Cost: the services.
-- Callers: submission_of, weir_quota.
CREATE OR REPLACE FUNCTION raise_no_service(service text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RAISE invalid_parameter_value USING
        MESSAGE = format('unknown service %s', service),
        HINT = format('the services are %s; run `weir migrate` to add those of weir.toml',
                      coalesce((SELECT string_agg(s.name, ', ' ORDER BY s.name) FROM weir_services s), 'none'));
END
$$;
