-- The parts of the tables in a schema, one text each: columns, constraints, indexes and triggers. The session's
-- search_path has the schema, so that the texts do not name it. Omits River's tables, and what differs between versions
-- of PostgreSQL: since 18, NOT NULL is also a constraint.
-- Parameters: $1 the schema.
WITH settings AS MATERIALIZED (
    -- The texts of expressions depend on them.
    SELECT set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO', true),
           set_config('IntervalStyle', 'postgres', true), set_config('quote_all_identifiers', 'off', true)
), own AS MATERIALIZED (
    SELECT c.oid, c.relname::text AS name
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname !~ '^river_' AND EXISTS (SELECT FROM settings)
)
SELECT concat_ws(' ', 'column', o.name || '.' || a.attname, format_type(a.atttypid, a.atttypmod),
                 CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                 CASE WHEN a.attidentity <> '' THEN 'IDENTITY' END,
                 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid, true)) AS object
FROM own o
JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
UNION ALL
SELECT concat_ws(' ', 'constraint', o.name || '.' || k.conname, pg_get_constraintdef(k.oid, true))
FROM own o JOIN pg_constraint k ON k.conrelid = o.oid WHERE k.contype <> 'n'
UNION ALL
SELECT concat_ws(' ', 'index', pg_get_indexdef(i.indexrelid, 0, true), CASE WHEN NOT i.indisvalid THEN 'INVALID' END)
FROM own o JOIN pg_index i ON i.indrelid = o.oid
UNION ALL
SELECT concat_ws(' ', 'trigger', pg_get_triggerdef(t.oid, true), CASE WHEN t.tgenabled = 'D' THEN 'DISABLED' END)
FROM own o JOIN pg_trigger t ON t.tgrelid = o.oid WHERE NOT t.tgisinternal
ORDER BY 1
