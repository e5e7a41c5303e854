-- The relevant properties of server, database and role.
-- Parameters: $1 the schema of Weir's tables, $2 the schema of River's tables.
WITH schemas AS (
    SELECT nspname, has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE') AS may_create
    FROM pg_namespace
), tables AS (
    SELECT n.nspname, c.relname, c.relowner::regrole::text AS owner, pg_has_role(c.relowner, 'USAGE') AS is_own
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
)
SELECT current_setting('server_version_num')::int AS version,
       current_setting('server_version') AS release,
       current_setting('server_encoding') AS encoding,
       current_setting('transaction_read_only') = 'on' AS is_read_only,
       current_database()::text AS database,
       current_user::text AS role,
       has_database_privilege(current_database(), 'CREATE') AS may_create_schemas,
       (SELECT may_create FROM schemas WHERE nspname = $1) AS may_create_in_weir,
       (SELECT may_create FROM schemas WHERE nspname = $2) AS may_create_in_river,
       (SELECT owner FROM tables WHERE nspname = $1 AND relname = 'weir_schema' AND NOT is_own) AS other_owner_of_weir,
       (SELECT owner FROM tables WHERE nspname = $2 AND relname = 'river_job' AND NOT is_own) AS other_owner_of_river
