-- Releases this session's lease. The time of the last maintenance is lost, so the next holder looks as far back as a
-- first one.
UPDATE maintenance_lease d SET expires_at = '-infinity', done_at = NULL, backend = NULL
FROM pg_stat_get_activity(pg_backend_pid()) a
WHERE (d.backend, d.backend_start) = (a.pid, a.backend_start)
