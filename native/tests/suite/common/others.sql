-- Everything in a schema that a migration could change: definitions, and rows by table. $1 the schema, $2 a pattern of
-- the tables to omit.
SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C")
FROM (
    SELECT format('table %s %s', c.relname, c.relkind) AS line
    FROM pg_class c WHERE c.relnamespace = $1::text::regnamespace AND c.relname !~ $2
    UNION ALL
    SELECT format('column %s.%s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                  pg_get_expr(d.adbin, d.adrelid))
    FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = $1::text::regnamespace AND c.relname !~ $2
    UNION ALL
    SELECT format('index %s', indexdef) FROM pg_indexes WHERE schemaname = $1::text AND tablename !~ $2
    UNION ALL
    SELECT format('constraint %s %s', n.conname, pg_get_constraintdef(n.oid))
    FROM pg_constraint n JOIN pg_class c ON c.oid = n.conrelid
    WHERE n.connamespace = $1::text::regnamespace AND c.relname !~ $2
    UNION ALL
    SELECT format('trigger %s', pg_get_triggerdef(t.oid))
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = $1::text::regnamespace AND c.relname !~ $2 AND NOT t.tgisinternal
    UNION ALL
    SELECT format('function %s', pg_get_functiondef(p.oid)) FROM pg_proc p
    WHERE p.pronamespace = $1::text::regnamespace AND p.proname !~ $2
    UNION ALL
    SELECT format('type %s', t.typname) FROM pg_type t
    WHERE t.typnamespace = $1::text::regnamespace AND t.typrelid = 0 AND t.typelem = 0 AND t.typname !~ $2
    UNION ALL
    SELECT format('rows %s %s', c.relname, query_to_xml(format('SELECT * FROM %I.%I ORDER BY 1', $1::text, c.relname), true, true, ''))
    FROM pg_class c WHERE c.relnamespace = $1::text::regnamespace AND c.relname !~ $2 AND c.relkind = 'r'
) lines
