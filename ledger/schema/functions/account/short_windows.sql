-- The windows shorter than the month, with the bit of each in columns such as plan_limits.counted and
-- quota_reservations.windows. Rust has the same in policy/src/span.rs (seconds, bit).
--
-- One SELECT, not STRICT and without SET, so that the planner inlines it.
-- Cost: no table.
-- Callers: account_of, windows_of, count_limited_windows; the views charged_amounts and reserved_amounts;
-- ledger/src/control/sql/usage_by_period.sql.
CREATE OR REPLACE FUNCTION short_windows() RETURNS TABLE (mask int, span text, length interval)
LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 3 AS $$
    SELECT w.mask, w.span, w.length
    FROM (VALUES (1, 'day', interval '24 hours'), (2, 'hour', interval '1 hour'), (4, 'minute', interval '1 minute'))
        AS w (mask, span, length)
$$;
