-- Above both the current limit and the limit in force when a reservation was last accepted. Usage above a plan that was
-- lowered later is allowed. Usage that was never granted is a violation.
SELECT format('user %s, %s, %s of %s: used %s + reserved %s - %s from grants > limit %s',
              b.user_id, b.event_type, b.span, b.period_start, b.used, b.reserved, b.from_grants, greatest(b.granted_limit, p.most))
FROM quota_balances b
CROSS JOIN LATERAL (
    -- A soft limit ends at its ceiling.
    SELECT CASE b.span WHEN 'month' THEN max_accepted(l.month, l.month_ceiling)
                       WHEN 'day' THEN max_accepted(l.day, l.day_ceiling)
                       WHEN 'hour' THEN max_accepted(l.hour, l.hour_ceiling)
                       ELSE max_accepted(l.minute, l.minute_ceiling) END AS most
    FROM plan_of(b.user_id, b.event_type, now()) l
) p
WHERE p.most IS NOT NULL AND b.used::numeric + b.reserved - b.from_grants > greatest(b.granted_limit, p.most)
LIMIT $1
