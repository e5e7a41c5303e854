-- The columns of the relations to import from, with their types and place; and whether this role may read them.
-- Parameters: $1 the schema, $2 the names of the relations.
SELECT c.relname::text AS relation, format('%I.%I', n.nspname, c.relname) AS place,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS is_readable,
       a.attname::text AS name, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL) AS type,
       format('GRANT USAGE ON SCHEMA %I TO %I; GRANT SELECT ON ALL TABLES IN SCHEMA %1$I TO %2$I', n.nspname, current_user) AS grants
FROM pg_namespace n
JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relname = ANY ($2)
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
WHERE n.nspname = $1
ORDER BY c.relname, a.attnum
