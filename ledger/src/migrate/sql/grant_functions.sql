-- The functions for other languages run with the rights of the tables' owner, for whoever is given one of two roles:
-- weir_submitter and weir_worker. The roles are the server's, and shared by every Weir on it. After every migration: they
-- may have been made meanwhile, where this role must not make them.
DO $$
DECLARE
    r text;
    f record;
BEGIN
    FOREACH r IN ARRAY ARRAY['weir_submitter', 'weir_worker'] LOOP
        IF to_regrole(r) IS NULL THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', r);
            EXCEPTION
                -- Another Weir on this server was faster.
                WHEN duplicate_object OR unique_violation THEN NULL;
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'the role % may not be made here; have CREATE ROLE % run and migrate again, or GRANT EXECUTE ON the functions weir_... to roles of your own', r, r;
                    CONTINUE;
            END;
        END IF;
        IF NOT has_schema_privilege(r, current_schema(), 'USAGE') THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), r);
        END IF;
    END LOOP;
    FOR f IN
        SELECT p.oid::regprocedure AS routine, p.proacl,
               CASE p.proname WHEN 'weir_submit' THEN ARRAY['weir_submitter']
                              WHEN 'weir_holder' THEN ARRAY['weir_submitter', 'weir_worker']
                              ELSE ARRAY['weir_worker'] END AS roles
        FROM pg_proc p
        WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
          AND p.proname IN ('weir_submit', 'weir_holder', 'weir_claim', 'weir_complete', 'weir_fail', 'weir_progress', 'weir_extend')
          AND pg_has_role(p.proowner, 'USAGE')
    LOOP
        IF f.proacl IS NULL OR EXISTS (SELECT 1 FROM aclexplode(f.proacl) a WHERE a.grantee = 0) THEN
            EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f.routine);
        END IF;
        FOREACH r IN ARRAY f.roles LOOP
            IF to_regrole(r) IS NOT NULL AND NOT has_function_privilege(r, f.routine, 'EXECUTE') THEN
                EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', f.routine, r);
            END IF;
        END LOOP;
    END LOOP;
END
$$;
