-- The grants that this role lacks on River's tables, as commands. No row: it lacks none.
-- Parameters: $1 the schema of River's tables.
WITH river AS (
    SELECT c.oid, c.relname, c.relkind
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname ~ '^river_' AND c.relkind IN ('r', 'p', 'S')
), wanted AS (
    SELECT r.*, w.privilege
    FROM river r
    JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS w (privilege)
        ON r.relkind <> 'S' AND (r.relname <> 'river_migration' OR w.privilege = 'SELECT')
    WHERE NOT has_table_privilege(r.oid, w.privilege)
    UNION ALL
    SELECT r.*, 'USAGE' FROM river r
    -- This function raises an error for a table.
    WHERE CASE WHEN r.relkind = 'S' THEN NOT has_sequence_privilege(r.oid, 'USAGE') END
)
SELECT format('GRANT USAGE ON SCHEMA %I TO %I', $1, current_user) AS command
WHERE EXISTS (SELECT 1 FROM pg_namespace n WHERE n.nspname = $1 AND NOT has_schema_privilege(n.oid, 'USAGE'))
UNION ALL
SELECT format('GRANT %s ON %s %I.%I TO %I', string_agg(w.privilege, ', '),
              CASE w.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, $1, w.relname, current_user)
FROM wanted w
GROUP BY w.relkind, w.relname
ORDER BY 1
