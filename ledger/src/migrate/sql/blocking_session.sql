-- The oldest transaction with a lock on a table of Weir's or River's, as text. PostgreSQL may hide the start of other
-- roles' transactions; such a transaction comes first. No row when it has ended.
SELECT format('the session %s of %s (%s, its transaction began at %s)', a.pid, coalesce(a.usename::text, 'an unknown user'),
              coalesce(nullif(a.application_name, ''), 'no application_name'),
              coalesce(to_char(a.xact_start, 'HH24:MI:SS'), 'an unknown time')) AS session
FROM pg_stat_activity a
WHERE a.pid <> pg_backend_pid() AND a.datname = current_database()
  AND EXISTS (SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
              WHERE l.pid = a.pid AND l.granted AND l.locktype = 'relation' AND c.relnamespace IN (
                  SELECT n.oid FROM pg_namespace n WHERE n.nspname = ANY (current_schemas(false))))
ORDER BY a.xact_start NULLS FIRST
LIMIT 1
