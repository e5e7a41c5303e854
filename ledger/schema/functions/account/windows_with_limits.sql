-- The current month and day of a user and meter, with their limits. Omits windows without a limit. Returns no row when
-- the plan has no limits for the meter.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: as account_of().
-- Callers: emit_thresholds, emit_renewals.
CREATE OR REPLACE FUNCTION windows_with_limits(of_user uuid, meter text, moment timestamptz)
RETURNS TABLE (span text, period_start timestamptz, ends_at timestamptz, most bigint, used bigint)
LANGUAGE sql STABLE AS $$
    SELECT w.*
    FROM account_of(of_user, meter, false, moment) a
    CROSS JOIN LATERAL unnest(a.spans, a.starts, a.ends, a.limits, a.used_in) AS w (span, period_start, ends_at, most, used)
    WHERE w.span IN ('month', 'day') AND w.most > 0
$$;
