-- One row a meter. $1 user. One who was never seen has the default plan. The columns are those of a reservation's reading.
SELECT m.name AS event_type,
       m.unit,
       plan.tier::text AS tier,
       plan.lane,
       plan.slots,
       own.slots AS own_slots,
       nullif(coalesce(own.month, plan.month), -1) AS monthly_limit,
       CASE WHEN own.month IS NULL THEN plan.month_ceiling END AS monthly_ceiling,
       clock.at,
       period.period_start,
       period.period_end,
       coalesce(b.used, 0) AS used,
       coalesce(b.reserved, 0) AS reserved,
       coalesce(b.from_grants, 0) AS from_grants,
       coalesce(granted.amount, 0) AS granted,
       short.spans,
       short.limits,
       short.ceilings,
       short.used AS short_used,
       short.reserved AS short_reserved
FROM meters m
CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
CROSS JOIN LATERAL (
    SELECT p.tier, p.lane, s.anchor, l.*
    FROM subscription_of($1, clock.at) s
    JOIN subscription_plans p ON p.id = s.plan_id
    JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = m.name
) plan
LEFT JOIN limit_overrides own
    ON own.user_id = $1 AND own.event_type = m.name AND (own.expires_at IS NULL OR own.expires_at > clock.at)
CROSS JOIN LATERAL billing_period(plan.anchor, clock.at) period
LEFT JOIN quota_balances b
    ON b.user_id = $1 AND b.event_type = m.name AND b.span = 'month' AND b.period_start = period.period_start
LEFT JOIN LATERAL (
    SELECT sum(g.amount - g.reserved - g.used)::bigint AS amount
    FROM grants g
    WHERE g.user_id = $1 AND g.event_type = m.name AND g.used < g.amount
      AND (g.expires_at IS NULL OR g.expires_at > clock.at)
) granted ON true
LEFT JOIN LATERAL (
    SELECT array_agg(c.span ORDER BY c.bit) AS spans,
           array_agg(c.most ORDER BY c.bit) AS limits,
           array_agg(c.ceiling ORDER BY c.bit) AS ceilings,
           array_agg(coalesce(q.used, 0) ORDER BY c.bit) AS used,
           array_agg(coalesce(q.reserved, 0) ORDER BY c.bit) AS reserved
    FROM (VALUES (1, 'day', nullif(coalesce(own.day, plan.day), -1), CASE WHEN own.day IS NULL THEN plan.day_ceiling END),
                 (2, 'hour', nullif(coalesce(own.hour, plan.hour), -1), CASE WHEN own.hour IS NULL THEN plan.hour_ceiling END),
                 (4, 'minute', nullif(coalesce(own.minute, plan.minute), -1),
                  CASE WHEN own.minute IS NULL THEN plan.minute_ceiling END)) AS c (bit, span, most, ceiling)
    LEFT JOIN quota_balances q ON q.user_id = $1 AND q.event_type = m.name AND q.span = c.span
        AND q.period_start = date_trunc(c.span, clock.at, 'UTC')
    WHERE plan.counted & c.bit <> 0
) short ON true
ORDER BY m.name
