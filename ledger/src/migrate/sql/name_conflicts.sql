-- Existing objects of a schema with names that are about to be created.
-- Parameters: $1 the schema, $2 names of tables, indexes and types, which share a namespace, $3 names of functions.
SELECT kind, name
FROM (
    SELECT CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'table' WHEN 'f' THEN 'table' WHEN 'v' THEN 'view'
                          WHEN 'm' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type' ELSE 'index' END AS kind,
           c.relname::text AS name
    FROM pg_class c
    WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND c.relname::text = ANY ($2::text[])
    UNION
    SELECT 'type', t.typname::text
    FROM pg_type t
    WHERE t.typnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND t.typname::text = ANY ($2::text[])
      AND t.typrelid = 0
    UNION
    SELECT 'function', p.proname::text
    FROM pg_proc p
    WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND p.proname::text = ANY ($3::text[])
) taken
ORDER BY array_position(ARRAY['table', 'view', 'sequence', 'index', 'type', 'function'], kind), name
