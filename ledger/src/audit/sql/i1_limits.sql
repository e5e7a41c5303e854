-- Over both the limit of today and the one in force when a reservation was last accepted: a plan that was lowered
-- since is no fault, usage that nobody granted is.
SELECT format('user %s, %s, %s of %s: used %s + reserved %s - %s from grants > limit %s',
              b.user_id, b.event_type, b.span, b.period_start, b.used, b.reserved, b.from_grants, greatest(b.granted_limit, p.most))
FROM quota_balances b
CROSS JOIN LATERAL (
    -- A soft limit ends at its ceiling.
    SELECT CASE b.span WHEN 'month' THEN nullif(coalesce(o.month, max_accepted(l.month, l.month_ceiling)), -1)
                       WHEN 'day' THEN nullif(coalesce(o.day, max_accepted(l.day, l.day_ceiling)), -1)
                       WHEN 'hour' THEN nullif(coalesce(o.hour, max_accepted(l.hour, l.hour_ceiling)), -1)
                       ELSE nullif(coalesce(o.minute, max_accepted(l.minute, l.minute_ceiling)), -1) END AS most
    FROM subscription_of(b.user_id, now()) s
    JOIN plan_limits l ON l.plan_id = s.plan_id AND l.event_type = b.event_type
    LEFT JOIN limit_overrides o
        ON o.user_id = b.user_id AND o.event_type = b.event_type AND (o.expires_at IS NULL OR o.expires_at > now())
) p
WHERE p.most IS NOT NULL AND b.used::numeric + b.reserved - b.from_grants > greatest(b.granted_limit, p.most)
LIMIT $1
