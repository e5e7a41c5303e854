-- The retention of a plan's finished jobs; null keeps them indefinitely. A hundred years or more also count as without
-- end, because a time plus such an interval can be out of range.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: ledger/src/reconciliation/sql/clean_finished.sql, ledger/src/reconciliation/sql/keep_finished.sql.
CREATE OR REPLACE FUNCTION retention_of(retention_days int) RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN retention_days < 36500 THEN retention_days END * interval '1 day'
$$;
