-- The roles for other languages: weir_submitter may submit, weir_worker may work. Roles belong to the server, so all
-- Weirs on it share them.
DO $$
DECLARE
    r text;
BEGIN
    FOREACH r IN ARRAY ARRAY['weir_submitter', 'weir_worker'] LOOP
        CONTINUE WHEN to_regrole(r) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', r);
        EXCEPTION
            -- Another Weir on this server created it first.
            WHEN duplicate_object OR unique_violation THEN NULL;
            -- `weir migrate` reports what is missing.
            WHEN insufficient_privilege THEN NULL;
        END;
    END LOOP;
END
$$;
