-- A user's usage and reservations in the current billing period, and the parts of the usage that grants paid for and that
-- were overage.
-- Parameters: $1 user, $2 meter. Cost: the user's usage events of the period.
SELECT coalesce(max(b.used), 0) AS used, coalesce(max(b.reserved), 0) AS reserved,
       (SELECT coalesce(sum(d.charged), 0)::bigint
        FROM usage_events u JOIN grant_draws d ON d.job_id = u.job_id
        WHERE u.user_id = $1 AND u.event_type = $2 AND u.period_start = p.start
          AND u.created_at >= p.start - interval '32 days' AND u.from_grants > 0) AS from_grants,
       (SELECT greatest(coalesce(sum(u.overage), 0), 0)::bigint
        FROM usage_events u
        WHERE u.user_id = $1 AND u.event_type = $2 AND u.period_start = p.start
          AND u.created_at >= p.start - interval '32 days') AS overage
FROM (SELECT period_start_of($1, now()) AS start) p
LEFT JOIN quota_balances b ON b.user_id = $1 AND b.event_type = $2 AND b.span = 'month' AND b.period_start = p.start
GROUP BY p.start
