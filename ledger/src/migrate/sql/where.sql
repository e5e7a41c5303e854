-- The schemas of Weir's and River's tables, by settings or else by the session's search_path: where the tables exist,
-- or would be created. Also the version of River's tables, if they record it, and whether jobs have unique_states,
-- which River's sixth version added.
-- Parameters: $1 WEIR_SCHEMA, $2 RIVER_SCHEMA.
WITH found AS (
    SELECT n.nspname, c.relname
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid IN (to_regclass('weir_schema'), to_regclass('river_job'))
), named AS (
    SELECT coalesce($1, (SELECT nspname FROM found WHERE relname = 'weir_schema'), current_schema())::text AS weir,
           coalesce($2, (SELECT nspname FROM found WHERE relname = 'river_job'), current_schema())::text AS river
), there AS (
    SELECT n.nspname, c.oid, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
)
SELECT t.weir,
       t.river,
       EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = t.weir) AS has_weir,
       EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = t.river) AS has_river,
       EXISTS (SELECT 1 FROM there WHERE nspname = t.weir AND relname = 'weir_schema') AS has_record,
       EXISTS (SELECT 1 FROM there WHERE nspname = t.river AND relname = 'weir_schema') AS has_record_at_river,
       EXISTS (SELECT 1 FROM there WHERE nspname = t.weir AND relname = 'river_job') AS has_jobs_at_weir,
       EXISTS (SELECT 1 FROM there WHERE nspname = t.river AND relname = 'river_job') AS has_jobs,
       EXISTS (SELECT 1 FROM there WHERE nspname = t.river AND relname = 'river_migration') AS has_river_ledger,
       EXISTS (SELECT 1 FROM there JOIN pg_attribute a ON a.attrelid = oid AND a.attname = 'unique_states'
               WHERE nspname = t.river AND relname = 'river_job') AS has_unique_states
FROM named t
