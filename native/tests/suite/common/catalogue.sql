-- The contents of a schema, one row per object: its name as text, and its definition. Two databases are equal if these
-- rows are. Omits River's objects. $1 the schema.
WITH own AS (
    SELECT c.oid, c.relname::text AS name, c.relkind, c.reloptions, c.relacl, c.relowner, c.relpersistence,
           c.relreplident, c.relrowsecurity
    FROM pg_class c
    WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND c.relname !~ '^river_'
), own_functions AS (
    SELECT p.*, p.oid::regprocedure::text AS signature
    FROM pg_proc p
    WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND p.proname !~ '^river_job_state'
), own_types AS (
    SELECT t.*
    FROM pg_type t
    WHERE t.typnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND t.typtype IN ('d', 'e')
      AND t.typname !~ '^river_'
), rights AS (
    SELECT 'table ' || c.name AS object, a.* FROM own c CROSS JOIN LATERAL aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
    WHERE c.relkind IN ('r', 'p', 'v', 'm')
    UNION ALL
    SELECT 'sequence ' || c.name, a.* FROM own c CROSS JOIN LATERAL aclexplode(coalesce(c.relacl, acldefault('s', c.relowner))) a
    WHERE c.relkind = 'S'
    UNION ALL
    SELECT 'function ' || p.signature, a.*
    FROM own_functions p CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    UNION ALL
    SELECT 'type ' || t.typname, a.*
    FROM own_types t CROSS JOIN LATERAL aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) a
), objects (object, definition) AS (
    SELECT 'table ' || c.name, concat_ws(' ', c.relkind, c.relpersistence, c.relreplident, c.relrowsecurity, c.reloptions)
    FROM own c WHERE c.relkind IN ('r', 'p')
    UNION ALL
    SELECT 'column ' || c.name || '.' || a.attname,
           concat_ws(' ', a.attnum - (SELECT count(*) FROM pg_attribute d WHERE d.attrelid = a.attrelid AND d.attisdropped
                                                                          AND d.attnum BETWEEN 1 AND a.attnum),
                     format_type(a.atttypid, a.atttypmod), nullif(a.attcollation, 0)::regcollation,
                     CASE WHEN a.attnotnull THEN 'not null' END, 'identity=' || nullif(a.attidentity::text, ''),
                     'default=' || pg_get_expr(d.adbin, d.adrelid))
    FROM own c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relkind IN ('r', 'p')
    UNION ALL
    SELECT 'constraint ' || c.name || '.' || k.conname, pg_get_constraintdef(k.oid)
    FROM own c JOIN pg_constraint k ON k.conrelid = c.oid
    -- Since PostgreSQL 18, NOT NULL is a named constraint. The columns above show it already.
    WHERE k.contype <> 'n'
    UNION ALL
    SELECT 'index ' || i.indexrelid::regclass, pg_get_indexdef(i.indexrelid) || coalesce(' ' || x.reloptions::text, '')
    FROM own c JOIN pg_index i ON i.indrelid = c.oid JOIN pg_class x ON x.oid = i.indexrelid
    UNION ALL
    SELECT 'trigger ' || c.name || '.' || t.tgname, pg_get_triggerdef(t.oid) || ' ' || t.tgenabled::text
    FROM own c JOIN pg_trigger t ON t.tgrelid = c.oid WHERE NOT t.tgisinternal
    UNION ALL
    SELECT 'view ' || c.name, pg_get_viewdef(c.oid) FROM own c WHERE c.relkind IN ('v', 'm')
    UNION ALL
    SELECT 'sequence ' || c.name, concat_ws(' ', s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmax, s.seqcycle)
    FROM own c JOIN pg_sequence s ON s.seqrelid = c.oid
    UNION ALL
    SELECT 'function ' || p.signature, pg_get_functiondef(p.oid) FROM own_functions p
    UNION ALL
    SELECT 'type ' || t.typname,
           concat_ws(' ', format_type(nullif(t.typbasetype, 0), t.typtypmod), nullif(t.typcollation, 0)::regcollation,
                     (SELECT string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid))
    FROM own_types t
    UNION ALL
    SELECT 'rights of ' || CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE r.grantee::regrole::text END || ' on ' || r.object,
           string_agg(r.privilege_type || CASE WHEN r.is_grantable THEN ' with grant option' ELSE '' END, ', '
                      ORDER BY r.privilege_type)
    FROM rights r GROUP BY r.grantee, r.object
    UNION ALL
    SELECT 'comment on ' || CASE WHEN d.objsubid = 0 THEN 'table ' || c.name
                                 ELSE 'column ' || c.name || '.' || (SELECT a.attname FROM pg_attribute a
                                                                     WHERE a.attrelid = c.oid AND a.attnum = d.objsubid) END,
           d.description
    FROM own c JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass
    UNION ALL
    SELECT 'comment on function ' || p.signature, d.description
    FROM own_functions p JOIN pg_description d ON d.objoid = p.oid AND d.classoid = 'pg_proc'::regclass
    UNION ALL
    SELECT 'comment on type ' || t.typname, d.description
    FROM own_types t JOIN pg_description d ON d.objoid = t.oid AND d.classoid = 'pg_type'::regclass
)
SELECT object, definition FROM objects ORDER BY object, definition
