-- Imports the reservations of waiting jobs. They hold no slot yet: maintenance admits or parks the jobs, as those of
-- other River clients. A submission makes each job visible to its user.
WITH wanted AS MATERIALIZED (
    SELECT r.job_id, u.holder, r.event_type, r.reserved_amount::bigint AS amount, p.period_start,
           coalesce(r.created_at, now()) AS created_at,
           CASE WHEN coalesce(r.created_at, now()) > now() - interval '1 day' THEN c.counted ELSE 0 END AS windows
    FROM pg_temp.import_reservations r
    JOIN pg_temp.import_users u ON u.id = r.user_id
    CROSS JOIN LATERAL subscription_of(u.holder, now()) s
    CROSS JOIN LATERAL billing_period(s.anchor, coalesce(r.created_at, now())) p
    JOIN (SELECT l.event_type, max(l.counted) AS counted FROM plan_limits l GROUP BY 1) c ON c.event_type = r.event_type
    -- A job that has ended or started since the copy is left out.
    CROSS JOIN LATERAL (
        SELECT j.id FROM river_job j
        WHERE j.id = r.job_id AND j.finalized_at IS NULL
          AND (j.state <> 'running' OR EXISTS (SELECT 1 FROM quota_reservations k WHERE k.job_id = j.id))
        FOR NO KEY UPDATE
    ) job
    WHERE r.is_new
)
INSERT INTO weir_jobs
    (job_id, holder, user_id, event_type, reserved_amount, submitted_at, reserved_at, period_start, windows, expires_at)
SELECT w.job_id, w.holder, w.holder, w.event_type, w.amount, w.created_at, w.created_at, w.period_start, w.windows,
       now() + t.reservation_ttl
FROM wanted w
CROSS JOIN weir_settings t
ORDER BY w.holder, w.job_id
ON CONFLICT (job_id) DO UPDATE
    SET reserved_amount = excluded.reserved_amount, submitted_at = excluded.submitted_at, reserved_at = excluded.reserved_at,
        period_start = excluded.period_start, windows = excluded.windows
