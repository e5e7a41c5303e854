-- A role for weir serve, weir work and weir schedule that can change rows, but neither tables nor functions. Run this as
-- the role that runs weir migrate, after its first run:
--
--   psql "$DATABASE_URL" --set ON_ERROR_STOP=1 --file deploy/roles.sql
--   psql "$DATABASE_URL" --command '\password weir_app'
--
-- With WEIR_SCHEMA or RIVER_SCHEMA, replace public, and repeat the statements for each schema.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'weir_app') THEN
        CREATE ROLE weir_app LOGIN;
    END IF;
END $$;
GRANT USAGE ON SCHEMA public TO weir_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO weir_app;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO weir_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO weir_app;
-- For what later upgrades create.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO weir_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO weir_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT EXECUTE ON FUNCTIONS TO weir_app;
