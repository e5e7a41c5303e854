-- The totals in the source, and those of the same rows in the database.
SELECT * FROM (
    SELECT 1 AS n, 'users' AS what, count(*) AS source, count(k.id) AS weir
    FROM pg_temp.import_users u
    LEFT JOIN users k ON k.id = u.holder
    UNION ALL
    SELECT 2, 'active subscriptions', count(*), count(c.event_id)
    FROM pg_temp.import_subscriptions s
    LEFT JOIN plan_changes c ON c.event_id = s.event_id AND c.applied
    WHERE s.status = 'active'
    UNION ALL
    SELECT 3, 'usage events of ' || e.event_type, count(*), count(k.id)
    FROM pg_temp.import_usage e
    LEFT JOIN usage_events k ON k.id = e.event_id
    GROUP BY e.event_type
    UNION ALL
    SELECT 4, 'usage of ' || e.event_type, coalesce(sum(e.quota_amount), 0)::bigint, coalesce(sum(k.quota_amount), 0)::bigint
    FROM pg_temp.import_usage e
    LEFT JOIN usage_events k ON k.id = e.event_id
    GROUP BY e.event_type
    UNION ALL
    SELECT 5, 'waiting jobs of ' || r.event_type, count(*), count(s.job_id)
    FROM pg_temp.import_reservations r
    LEFT JOIN weir_jobs s ON s.job_id = r.job_id
    WHERE r.is_open
    GROUP BY r.event_type
    UNION ALL
    SELECT 6, 'reserved of ' || r.event_type, coalesce(sum(r.reserved_amount), 0)::bigint, coalesce(sum(s.reserved_amount), 0)::bigint
    FROM pg_temp.import_reservations r
    LEFT JOIN weir_jobs s ON s.job_id = r.job_id
    WHERE r.is_open
    GROUP BY r.event_type
) sums
ORDER BY n, what
