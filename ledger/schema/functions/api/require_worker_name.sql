-- Refuses (22023) a name that no worker of another language can have. Names that start with weir_ are those of Weir's
-- own processes.
-- Cost: no table.
-- Callers: weir_claim, weir_heartbeat.
CREATE OR REPLACE FUNCTION require_worker_name(worker text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
BEGIN
    IF worker IS NULL OR worker !~ '^[[:alnum:]][[:alnum:]._-]{0,99}$' OR worker LIKE 'weir\_%' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'a worker name must have 1 to 100 letters, digits, ".", "_" and "-", and must not start with weir_';
    END IF;
END
$$;
