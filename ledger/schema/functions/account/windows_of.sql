-- The windows that an amount counts in: the month, and the windows around a moment that the bits name.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: weir_charge, release_jobs, settled_windows; ledger/src/control/sql/import_accept.sql.
CREATE OR REPLACE FUNCTION windows_of(month_start timestamptz, windows smallint, at timestamptz)
RETURNS TABLE (span text, period_start timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT 'month', month_start WHERE month_start IS NOT NULL
    UNION ALL
    SELECT w.span, date_trunc(w.span, at, 'UTC')
    FROM short_windows() w
    WHERE windows <> 0 AND windows & w.mask <> 0 AND month_start IS NOT NULL
$$;
