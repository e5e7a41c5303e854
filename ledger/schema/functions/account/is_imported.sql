-- Whether an import wrote a usage event with this reason, for usage that the other product has billed or has not. Null
-- without a reason. Rust writes the reasons: ledger/src/control/usage_feed.rs.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: move_usage; ledger/src/control/sql/archive_usage.sql and import_faults.sql.
CREATE OR REPLACE FUNCTION is_imported(reason text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT reason IN ('imported', 'imported, not billed')
$$;
