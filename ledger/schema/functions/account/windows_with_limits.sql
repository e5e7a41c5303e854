-- The current month and day of a user and meter, with their limits; a window without a limit is left out. No row when
-- the plan has no limits for the meter. Callers: emit_thresholds, emit_renewals.
CREATE OR REPLACE FUNCTION windows_with_limits(of_user uuid, meter text, moment timestamptz)
RETURNS TABLE (span text, period_start timestamptz, ends_at timestamptz, most bigint, used bigint)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    -- A plan without limits for the meter is a fault of the catalogue, and nothing to fail for here.
    IF NOT EXISTS (SELECT FROM plan_of(of_user, meter)) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT w.span, w.first, w.past, w.most, coalesce(b.used, 0)
    FROM limits_of(of_user, meter, moment) l
    CROSS JOIN LATERAL (
        SELECT 'month' AS span, l.month AS most, p.period_start AS first, p.period_end AS past
        FROM billing_period(l.anchor, moment) p
        UNION ALL
        SELECT 'day', l.day, date_trunc('day', moment, 'UTC'), date_trunc('day', moment, 'UTC') + interval '24 hours'
    ) w
    LEFT JOIN quota_balances b
        ON b.user_id = of_user AND b.event_type = meter AND b.span = w.span AND b.period_start = w.first
    WHERE w.most > 0;
END
$$;
