-- Gives the lease back that this session holds. Nothing remains of when the maintenance was done last: the next holder looks
-- as far back as a first one.
UPDATE maintenance_lease d SET expires_at = '-infinity', done_at = NULL, backend = NULL
FROM pg_stat_get_activity(pg_backend_pid()) a
WHERE (d.backend, d.backend_start) = (a.pid, a.backend_start)
