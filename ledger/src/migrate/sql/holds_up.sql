-- The oldest transaction that has a lock of one of Weir's tables, for people. No row when it is over.
SELECT format('the session %s of %s (%s, its transaction began at %s)', a.pid, coalesce(a.usename::text, 'somebody'),
              coalesce(nullif(a.application_name, ''), 'no application_name'), to_char(a.xact_start, 'HH24:MI:SS')) AS session
FROM pg_stat_activity a
WHERE a.pid <> pg_backend_pid() AND a.datname = current_database() AND a.xact_start IS NOT NULL
  AND EXISTS (SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
              WHERE l.pid = a.pid AND l.granted AND l.locktype = 'relation' AND c.relnamespace = current_schema()::regnamespace)
ORDER BY a.xact_start
LIMIT 1
