-- The windows that a reservation counts in, whichever windows are current now: what is used in each, and today's
-- limits.
-- Callers: weir_extend; ledger/src/attempts/sql/reserved.sql.
CREATE OR REPLACE FUNCTION windows_in_force(r quota_reservations)
RETURNS TABLE (span text, period_start timestamptz, reset_at timestamptz, used bigint, reserved bigint, most bigint,
               from_grants bigint, ceiling bigint)
LANGUAGE sql STABLE AS $$
    SELECT w.span, w.period_start,
           (SELECT p.period_end FROM billing_period(l.anchor, w.period_start) p WHERE w.span = 'month'),
           -- A short window is forgotten when it is long over and nothing is reserved in it.
           coalesce(b.used, CASE WHEN w.span <> 'month' AND w.period_start < now() - interval '2 days' THEN (
               SELECT sum(c.amount)::bigint FROM charged_amounts c
               WHERE c.user_id = r.user_id AND c.event_type = r.event_type AND c.span = w.span
                 AND c.period_start = w.period_start
           ) END, 0), coalesce(b.reserved, 0),
           CASE w.span WHEN 'month' THEN l.month WHEN 'day' THEN l.day WHEN 'hour' THEN l.hour ELSE l.minute END,
           coalesce(b.from_grants, 0),
           CASE w.span WHEN 'month' THEN l.month_ceiling WHEN 'day' THEN l.day_ceiling WHEN 'hour' THEN l.hour_ceiling
                       ELSE l.minute_ceiling END
    FROM windows_of(r.period_start, r.windows, r.created_at) w
    CROSS JOIN limits_of(r.user_id, r.event_type, clock_timestamp()) l
    LEFT JOIN quota_balances b
        ON b.user_id = r.user_id AND b.event_type = r.event_type AND b.span = w.span AND b.period_start = w.period_start
    WHERE r.user_id IS NOT NULL
$$;
