-- An account: what a holder has used of a meter and what it may use, window by window, the month first. The caller
-- holds the account's lock. Cost: one row of holders, the plan, one balance per window.
-- Callers: weir_submit. Rust reads the same in ledger/src/reservation/sql/read.sql.
CREATE OR REPLACE FUNCTION account_of(of_holder uuid, meter text)
RETURNS TABLE (user_id uuid, slots_in_use int, parked int, tier text, lane text, slots int, at timestamptz,
               counted smallint, max_waiting int, from_grants bigint, granted bigint, spans text[], starts timestamptz[],
               ends timestamptz[], limits bigint[], used bigint[], reserved bigint[], ceilings bigint[])
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT h.user_id, h.slots_in_use, h.parked, plan.tier, plan.lane,
           slots_in_force(h.user_id, plan.tier, plan.slots, plan.own_slots), clock.at, coalesce(plan.counted, 0::smallint),
           plan.max_waiting, coalesce(w.from_grants, 0),
           CASE WHEN h.has_grants THEN
               coalesce((SELECT sum(g.amount)::bigint FROM grants_left(h.user_id, h.event_type, clock.at) g), 0)
           ELSE 0 END,
           w.spans, w.starts, w.ends, w.limits, w.used, w.reserved, w.ceilings
    FROM (SELECT * FROM holders k WHERE k.holder = of_holder AND k.event_type = meter) h
    CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
    LEFT JOIN LATERAL limits_of(h.user_id, h.event_type, clock.at) plan ON h.user_id IS NOT NULL
    LEFT JOIN LATERAL (
        SELECT array_agg(c.span ORDER BY c.bit) AS spans, array_agg(c.first ORDER BY c.bit) AS starts,
               array_agg(c.past ORDER BY c.bit) AS ends, array_agg(c.most ORDER BY c.bit) AS limits,
               array_agg(coalesce(b.used, 0) ORDER BY c.bit) AS used,
               array_agg(coalesce(b.reserved, 0) ORDER BY c.bit) AS reserved,
               array_agg(c.ceiling ORDER BY c.bit) AS ceilings,
               sum(b.from_grants) FILTER (WHERE c.bit = 0)::bigint AS from_grants
        FROM (
            SELECT 0 AS bit, 'month' AS span, plan.month AS most, plan.month_ceiling AS ceiling, p.period_start AS first, p.period_end AS past
            FROM billing_period(plan.anchor, clock.at) p
            UNION ALL
            SELECT s.bit, s.span, s.most, s.ceiling, date_trunc(s.span, clock.at, 'UTC'),
                   date_trunc(s.span, clock.at, 'UTC') + s.length
            FROM (VALUES (1, 'day', plan.day, plan.day_ceiling, interval '24 hours'),
                         (2, 'hour', plan.hour, plan.hour_ceiling, interval '1 hour'),
                         (4, 'minute', plan.minute, plan.minute_ceiling, interval '1 minute'))
                AS s (bit, span, most, ceiling, length)
            WHERE plan.counted & s.bit <> 0
        ) c
        LEFT JOIN quota_balances b
            ON b.user_id = h.user_id AND b.event_type = h.event_type AND b.span = c.span AND b.period_start = c.first
    ) w ON h.user_id IS NOT NULL
$$;
