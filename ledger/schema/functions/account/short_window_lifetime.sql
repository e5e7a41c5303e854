-- The balance of a window shorter than a month is kept for this long after its start. Maintenance then deletes it if it
-- has no reservations. Readers leave a margin of a day:
--
-- - From a day before the deletion, when the row may be missing, account_of() sums up the window's usage events.
-- - rebuild_accounts() does not create such a row again.
-- - The audit ignores the window from another day before, because a rebuild leaves it unchanged.
--
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: account_of, rebuild_accounts; ledger/src/reconciliation/sql/clean_windows.sql,
-- ledger/src/audit/sql/i6_balances.sql.
CREATE OR REPLACE FUNCTION short_window_lifetime() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT interval '3 days'
$$;
