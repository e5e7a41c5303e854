-- The commands that drop Weir's objects, in order. Without CASCADE, so PostgreSQL refuses to drop an object that another
-- program's object uses.
-- Parameters: $1 Weir's schema; $2 and $3 the names of its relations and types, and of its functions.
WITH own AS (
    SELECT c.oid, c.relkind, c.oid::regclass::text AS name
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1::text AND c.relkind IN ('r', 'v') AND c.relname = ANY ($2::text[])
), commands AS (
    SELECT 1 AS n, format('DROP TRIGGER %I ON %s', t.tgname, o.name) AS command
    FROM own o JOIN pg_trigger t ON t.tgrelid = o.oid WHERE NOT t.tgisinternal
    UNION ALL
    SELECT 2, 'DROP VIEW ' || string_agg(o.name, ', ' ORDER BY o.name) FROM own o WHERE o.relkind = 'v'
    UNION ALL
    SELECT 3, 'DROP ROUTINE ' || string_agg(p.oid::regprocedure::text, ', ' ORDER BY p.oid)
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = $1 AND p.proname = ANY ($3::text[])
    UNION ALL
    SELECT 4, 'DROP TABLE ' || string_agg(o.name, ', ' ORDER BY o.name) FROM own o WHERE o.relkind = 'r'
    UNION ALL
    SELECT 5, 'DROP TYPE ' || string_agg(t.oid::regtype::text, ', ' ORDER BY t.oid DESC)
    FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_class c ON c.oid = t.typrelid
    WHERE n.nspname = $1 AND t.typname = ANY ($2) AND (t.typtype IN ('d', 'e') OR c.relkind = 'c')
    UNION ALL
    SELECT 6, format('REVOKE ALL ON SCHEMA %I FROM %I', n.nspname, a.grantee::regrole)
    FROM pg_namespace n CROSS JOIN LATERAL aclexplode(n.nspacl) a
    WHERE n.nspname = $1 AND a.grantee IN (to_regrole('weir_submitter'), to_regrole('weir_worker'))
)
SELECT command FROM commands WHERE command IS NOT NULL ORDER BY n, command
