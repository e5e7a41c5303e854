-- A timestamp as it is written in JSON: RFC 3339 in UTC with microseconds.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: attempt_error, emit, emit_job_ends, emit_renewals, emit_thresholds; ledger/src/control/sql/import_subscriptions.sql.
CREATE OR REPLACE FUNCTION utc_text(at timestamptz) RETURNS text LANGUAGE sql STABLE STRICT AS $$
    SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;
