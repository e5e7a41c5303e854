-- Whether jobs of this kind belong to a service. The functions for other languages accept only those. Other jobs, such
-- as webhook deliveries, are not for role weir_worker.
-- Cost: a scan of weir_services, which has one row a service.
-- Callers: the functions of this folder.
CREATE OR REPLACE FUNCTION is_service_kind(kind text) RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM weir_services s WHERE s.kind = is_service_kind.kind);
END
$$;
