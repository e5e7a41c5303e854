-- The anchor of billing periods that makes a paid period's start and end the start and end of such periods. The known
-- anchor stays when it does. Without an end, the start is a new anchor. With an end on a later day, as in 28 February to
-- 31 March, the end has the anchor's day. Returns null when the period has no whole number of months, from 1 to 36.
-- Cost: no table.
-- Callers: ledger/src/control/plan.rs, ledger/src/control/sql/import_subscriptions.sql.
CREATE OR REPLACE FUNCTION paid_anchor(paid_start timestamptz, paid_end timestamptz, known timestamptz) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    s CONSTANT timestamp := paid_start AT TIME ZONE 'UTC';
    e CONSTANT timestamp := paid_end AT TIME ZONE 'UTC';
    -- Months are counted from the start, or back from the end.
    from_start CONSTANT boolean := paid_end IS NULL OR EXISTS (
        SELECT FROM generate_series(1, 36) n WHERE s + make_interval(months => n) = e);
    from_end CONSTANT boolean := EXISTS (
        SELECT FROM generate_series(1, 36) n WHERE e - make_interval(months => n) = s);
BEGIN
    RETURN CASE
        WHEN NOT from_start AND NOT from_end THEN NULL
        WHEN (SELECT p.period_start FROM billing_period(known, paid_start) p) = paid_start
             AND (paid_end IS NULL OR (SELECT p.period_start FROM billing_period(known, paid_end) p) = paid_end) THEN known
        WHEN from_start THEN paid_start
        -- Four years earlier, 29 February is the same day.
        ELSE (e - interval '4 years') AT TIME ZONE 'UTC'
    END;
END
$$;
