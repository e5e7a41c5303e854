-- The server's state that affects vacuum and failover. One row, from the server's memory.
SELECT pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
       (SELECT greatest(age(d.datfrozenxid), mxid_age(d.datminmxid))::bigint FROM pg_database d
        WHERE d.datname = current_database()) AS wraparound,
       -- Null without a connected standby, or if their lag is not visible.
       (SELECT max(CASE WHEN r.sent_lsn IS NOT NULL THEN coalesce(extract(epoch FROM r.replay_lag), 0) END)::float8
        FROM pg_stat_replication r) AS replay_lag,
       (SELECT count(*) FROM pg_stat_replication) AS standbys,
       coalesce((SELECT max(pg_wal_lsn_diff(w.lsn, s.restart_lsn)) FROM pg_replication_slots s), 0)::float8 AS retained
FROM (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS lsn) w
