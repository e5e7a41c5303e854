-- The accounts that the locks protect. $1 holders, $2 event types, pairwise and distinct.
-- A user without an active subscription has the default plan and calendar months; limits of the user's own count before
-- the plan's. Grants are looked for only where there ever were some. `spans` and the arrays beside it are
-- the windows besides the month in which the meter is counted; most meters have none.
SELECT w.n AS position,
       h.slots_in_use,
       h.parked,
       plan.tier::text AS tier,
       plan.lane,
       plan.max_waiting,
       CASE WHEN plan.max_waiting IS NOT NULL THEN count_scheduled(w.holder, w.event_type, plan.max_waiting - h.parked) END
           AS scheduled,
       coalesce(plan.slots, CASE WHEN h.user_id IS NOT NULL THEN raise_no_limits(h.event_type) END) AS slots,
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
       granted.ids AS grant_ids,
       granted.amounts AS grant_amounts,
       granted.ends AS grant_ends,
       granted.starts AS grant_starts,
       short.spans,
       short.limits,
       short.ceilings,
       short.used AS short_used,
       short.reserved AS short_reserved
FROM unnest($1::uuid[], $2::usage_event_type[]) WITH ORDINALITY AS w (holder, event_type, n)
CROSS JOIN LATERAL (
    SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type OFFSET 0
) h
CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
LEFT JOIN LATERAL (
    SELECT p.tier, p.lane, p.max_waiting, s.anchor, l.*
    FROM subscription_of(h.user_id, clock.at) s
    JOIN subscription_plans p ON p.id = s.plan_id
    CROSS JOIN LATERAL (
        SELECT * FROM plan_limits k WHERE k.plan_id = p.id AND k.event_type = h.event_type OFFSET 0
    ) l
) plan ON h.user_id IS NOT NULL
LEFT JOIN LATERAL (
    SELECT * FROM limit_overrides o
    WHERE o.user_id = h.user_id AND o.event_type = h.event_type AND (o.expires_at IS NULL OR o.expires_at > clock.at)
    OFFSET 0
) own ON true
LEFT JOIN LATERAL billing_period(plan.anchor, clock.at) period ON h.user_id IS NOT NULL
LEFT JOIN LATERAL (
    SELECT * FROM quota_balances q
    WHERE q.user_id = h.user_id AND q.event_type = h.event_type AND q.span = 'month'
      AND q.period_start = period.period_start
    OFFSET 0
) b ON true
LEFT JOIN LATERAL (
    SELECT sum(g.amount - g.reserved - g.used)::bigint AS amount,
           array_agg(g.id) AS ids,
           array_agg(g.amount - g.reserved - g.used) AS amounts,
           array_agg(g.expires_at) AS ends,
           array_agg(g.created_at) AS starts
    FROM (
        SELECT * FROM grants k
        WHERE h.has_grants AND k.user_id = h.user_id AND k.event_type = h.event_type AND k.used < k.amount
          AND (k.expires_at IS NULL OR k.expires_at > clock.at) AND k.reserved + k.used < k.amount
        ORDER BY k.id OFFSET 0
    ) g
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
    LEFT JOIN LATERAL (
        SELECT * FROM quota_balances k
        WHERE k.user_id = h.user_id AND k.event_type = h.event_type AND k.span = c.span
          AND k.period_start = date_trunc(c.span, clock.at, 'UTC')
        OFFSET 0
    ) q ON true
    WHERE plan.counted <> 0 AND plan.counted & c.bit <> 0
) short ON true
