-- Acquires the maintenance lease for this session, or renews it. The lease is free when it has expired or its session
-- has ended. Returns whether this session holds it.
-- Parameters: $1 the process, $2 seconds until the lease expires, $3 whether the process has started the maintenance.
WITH this AS MATERIALIZED (
    SELECT a.pid, a.backend_start FROM pg_stat_get_activity(pg_backend_pid()) a
), held AS (
    UPDATE maintenance_lease d
    SET process = $1, backend = t.pid, backend_start = t.backend_start,
        expires_at = clock_timestamp() + make_interval(secs => $2),
        since = CASE WHEN d.process = $1 THEN d.since ELSE clock_timestamp() END,
        done_at = CASE WHEN $3::boolean THEN clock_timestamp() ELSE d.done_at END,
        xid = CASE WHEN $3::boolean OR d.xid IS NULL THEN pg_snapshot_xmin(pg_current_snapshot()) ELSE d.xid END
    FROM this t
    WHERE (d.backend, d.backend_start) = (t.pid, t.backend_start)
       OR coalesce(d.expires_at, '-infinity') < clock_timestamp()
       -- Another role's session has a null start.
       OR NOT EXISTS (SELECT FROM pg_stat_get_activity(d.backend) a
                      WHERE a.pid = d.backend AND coalesce(a.backend_start = d.backend_start, true))
    RETURNING d.one
), first AS (
    INSERT INTO maintenance_lease (process, backend, backend_start, expires_at, done_at, xid)
    SELECT $1, t.pid, t.backend_start, clock_timestamp() + make_interval(secs => $2), NULL,
           pg_snapshot_xmin(pg_current_snapshot())
    FROM this t
    WHERE NOT EXISTS (SELECT FROM maintenance_lease)
    ON CONFLICT (one) DO NOTHING
    RETURNING one
)
SELECT EXISTS (SELECT FROM held) OR EXISTS (SELECT FROM first) AS holds
