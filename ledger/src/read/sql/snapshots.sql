-- For each kind of owner, the oldest snapshot that keeps vacuum from removing dead rows of this database. Reads the
-- server's memory. A role without pg_read_all_stats sees only its own sessions' snapshots. A lazy vacuum holds back
-- nothing. A logical slot holds back the system catalogs and, with them, the age of the database.
SELECT DISTINCT ON (o.kind) o.kind, o.pid, o.name, o.application, o.state, o.query, o.seconds, o.transactions
FROM (
    SELECT 'session' AS kind, a.pid, a.usename::text AS name, nullif(a.application_name, '') AS application, a.state,
           left(regexp_replace(a.query, '\s+', ' ', 'g'), 200) AS query,
           extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint AS transactions
    FROM pg_stat_activity a
    WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.datname = current_database()
      AND a.pid <> pg_backend_pid() AND a.backend_type NOT IN ('walsender', 'autovacuum worker')
      AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
    UNION ALL
    SELECT 'prepared', NULL, p.owner::text, p.gid, 'prepared', NULL,
           extract(epoch FROM clock_timestamp() - p.prepared)::float8, age(p.transaction)::bigint
    FROM pg_prepared_xacts p
    WHERE p.database = current_database()
    UNION ALL
    SELECT 'slot', s.active_pid, s.slot_name::text, s.plugin::text, CASE WHEN s.active THEN 'active' ELSE 'inactive' END, NULL,
           NULL, greatest(age(s.xmin), age(s.catalog_xmin))::bigint
    FROM pg_replication_slots s
    WHERE s.xmin IS NOT NULL
       OR s.catalog_xmin IS NOT NULL AND (s.database IS NULL OR s.database = current_database())
    UNION ALL
    SELECT 'standby', r.pid, r.usename::text, nullif(r.application_name, ''), r.state, NULL, NULL, age(r.backend_xmin)::bigint
    FROM pg_stat_replication r
    WHERE r.backend_xmin IS NOT NULL
) o
ORDER BY o.kind, o.transactions DESC, o.seconds DESC NULLS LAST
