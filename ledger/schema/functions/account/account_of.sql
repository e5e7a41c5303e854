-- An account: what a user's plan allows of a meter now, and how much of it is used. Returns no row for a client address
-- (of_user is null) or when the plan has no limits for the meter. A caller that decides by this row holds the account's
-- lock.
--
-- - draws: whether to look up grants.
-- - of_month, of_windows, around: the windows of a reservation, as in its columns period_start, windows and created_at.
--   Null: the windows around `at`, the moment of the decision.
-- - period_start to from_grants: the month.
-- - short_…: arrays of the shorter counted windows, null when there are none.
-- - spans and the arrays after it: all windows, the month first.
-- - grant_…: the grants in the order in which they are drawn on.
-- - room: the amount that is still accepted, from the plan, grants and the ceilings of soft limits, in the window with the
--   least. Null is unlimited.
-- - capacity: the amount that can be added before a sum overflows.
-- - plan_left: what is left of the month's limit, negative when it is exceeded. Null is unlimited.
-- - slots_now: the slots in force.
-- - burst: as in plan_of.
--
-- One SELECT, not STRICT and without SET, so that the planner inlines it and computes only the columns that the caller
-- reads. Pass no volatile expression. With the constants false for `draws` and 0 for `of_windows`, the planner also leaves
-- out the grants and the shorter windows.
-- Cost: look-ups by key: the subscription, its plan, the limits, overrides, the account's row, one balance for each other
-- window. With draws, also the
-- index range of the unused grants.
-- Callers: accounts_of, admit_late, weir_extend, check_submission, windows_with_limits;
-- ledger/src/attempts/sql/reserved.sql, ledger/src/read/sql/usage.sql.
CREATE OR REPLACE FUNCTION account_of(of_user uuid, meter text, draws boolean, at timestamptz,
                                      of_month timestamptz DEFAULT NULL, of_windows smallint DEFAULT NULL,
                                      around timestamptz DEFAULT NULL)
RETURNS TABLE (tier text, lane text, slots int, own_slots int, attributes subscription_plans, counted smallint,
               period_start timestamptz, period_end timestamptz, monthly_limit bigint, monthly_ceiling bigint,
               used bigint, reserved bigint, from_grants bigint,
               granted bigint, grant_ids uuid[], grant_amounts bigint[], grant_ends timestamptz[], grant_starts timestamptz[],
               short_spans text[], short_limits bigint[], short_ceilings bigint[], short_used bigint[], short_reserved bigint[],
               spans text[], starts timestamptz[], ends timestamptz[], limits bigint[], ceilings bigint[], used_in bigint[],
               reserved_in bigint[], room numeric, capacity numeric, plan_left numeric, slots_now bigint, burst int)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT plan.tier, plan.lane, plan.slots, plan.own_slots, plan.attributes, plan.counted,
           coalesce(of_month, period.period_start), period.period_end, plan.month, plan.month_ceiling,
           coalesce(b.used, 0), coalesce(b.reserved, 0), coalesce(b.from_grants, 0),
           coalesce(granted.amount, 0), granted.ids, granted.amounts, granted.ends, granted.starts,
           short.spans, short.limits, short.ceilings, short.used, short.reserved,
           ARRAY['month'] || short.spans,
           ARRAY[coalesce(of_month, period.period_start)] || short.starts,
           ARRAY[period.period_end] || short.ends,
           ARRAY[plan.month] || short.limits,
           ARRAY[plan.month_ceiling] || short.ceilings,
           ARRAY[coalesce(b.used, 0)] || short.used,
           ARRAY[coalesce(b.reserved, 0)] || short.reserved,
           least(room_in(plan.month, plan.month_ceiling, coalesce(b.used, 0), coalesce(b.reserved, 0),
                         coalesce(b.from_grants, 0), coalesce(granted.amount, 0)),
                 CASE WHEN coalesce(of_windows, plan.counted) <> 0 THEN (
                     SELECT min(room_in(m.most, m.ceiling, m.used, m.reserved, 0, 0))
                     FROM unnest(short.limits, short.ceilings, short.used, short.reserved)
                         AS m (most, ceiling, used, reserved)) END),
           9223372036854775807 - greatest(
               coalesce(b.used, 0)::numeric + coalesce(b.reserved, 0),
               CASE WHEN coalesce(of_windows, plan.counted) <> 0 THEN (
                   SELECT max(m.used::numeric + m.reserved) FROM unnest(short.used, short.reserved) AS m (used, reserved)) END),
           plan.month - (coalesce(b.used, 0)::numeric + coalesce(b.reserved, 0) - coalesce(b.from_grants, 0)),
           CASE WHEN t.counts_slots
                THEN slot_limit(plan.tier, plan.own_slots, (t.slots_of_plans ->> plan.tier)::bigint, plan.slots, t.anonymous_slots)
                ELSE 2147483647 END,
           plan.burst
    FROM weir_settings t
    CROSS JOIN plan_of(of_user, meter, at) plan
    CROSS JOIN LATERAL billing_period(plan.anchor, coalesce(of_month, at)) period
    LEFT JOIN LATERAL (
        SELECT * FROM holders k WHERE k.holder = of_user AND k.event_type = meter ORDER BY k.generation DESC LIMIT 1
    ) h ON true
    LEFT JOIN LATERAL (
        SELECT h.used, h.reserved, h.from_grants WHERE h.period_start = coalesce(of_month, period.period_start)
        UNION ALL
        (SELECT k.used, k.reserved, k.from_grants FROM window_balances k
         WHERE h.period_start IS DISTINCT FROM coalesce(of_month, period.period_start)
           AND k.user_id = of_user AND k.event_type = meter AND k.span = 'month'
           AND k.period_start = coalesce(of_month, period.period_start)
         ORDER BY k.generation DESC LIMIT 1)
    ) b ON true
    LEFT JOIN LATERAL (
        SELECT sum(g.amount)::bigint AS amount, array_agg(g.id) AS ids, array_agg(g.amount) AS amounts,
               array_agg(g.expires_at) AS ends, array_agg(g.created_at) AS starts
        FROM (SELECT * FROM grants_left(of_user, meter, at) l ORDER BY l.n OFFSET 0) g
        WHERE draws
    ) granted ON draws
    LEFT JOIN LATERAL (
        SELECT array_agg(c.span ORDER BY c.mask) AS spans,
               array_agg(c.start ORDER BY c.mask) AS starts,
               array_agg(c.start + c.length ORDER BY c.mask) AS ends,
               array_agg(c.most ORDER BY c.mask) AS limits,
               array_agg(c.ceiling ORDER BY c.mask) AS ceilings,
               array_agg(coalesce(
                   q.used,
                   -- The row may be deleted: see short_window_lifetime().
                   CASE WHEN date_trunc(c.span, around, 'UTC') < now() - (short_window_lifetime() - interval '1 day') THEN (
                       SELECT sum(a.amount)::bigint FROM charged_amounts a
                       WHERE a.user_id = of_user AND a.event_type = meter AND a.span = c.span AND a.period_start = c.start
                   ) END,
                   0) ORDER BY c.mask) AS used,
               array_agg(coalesce(q.reserved, 0) ORDER BY c.mask) AS reserved
        FROM (
            SELECT s.*,
                   CASE s.span WHEN 'day' THEN plan.day WHEN 'hour' THEN plan.hour WHEN 'minute' THEN plan.minute END AS most,
                   CASE s.span WHEN 'day' THEN plan.day_ceiling WHEN 'hour' THEN plan.hour_ceiling
                               WHEN 'minute' THEN plan.minute_ceiling END AS ceiling,
                   date_trunc(s.span, coalesce(around, at), 'UTC') AS start
            FROM short_windows() s
        ) c
        LEFT JOIN LATERAL (
            SELECT * FROM window_balances k
            WHERE k.user_id = of_user AND k.event_type = meter AND k.span = c.span AND k.period_start = c.start
            ORDER BY k.generation DESC LIMIT 1
        ) q ON true
        WHERE coalesce(of_windows, plan.counted) <> 0 AND coalesce(of_windows, plan.counted) & c.mask <> 0
    ) short ON coalesce(of_windows, plan.counted) <> 0
    WHERE of_user IS NOT NULL
$$;
