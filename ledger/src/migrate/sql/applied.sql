-- The applied files that a record lists, and the names of the functions and views in its schema. {table} is the record.
SELECT r.release, r.upgrade, r.files,
       ARRAY(SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = c.relnamespace
             UNION ALL
             SELECT v.relname::text FROM pg_class v WHERE v.relnamespace = c.relnamespace AND v.relkind = 'v') AS names
FROM {table} r
JOIN pg_class c ON c.oid = r.tableoid
