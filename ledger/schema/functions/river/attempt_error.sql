-- An entry of river_job.errors, as River's clients write it: the attempt that ended at this time, and why.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: check_attempts, fail_attempt; ledger/src/attempts/sql/end.sql,
-- ledger/src/reconciliation/sql/take_over.sql.
CREATE OR REPLACE FUNCTION attempt_error(attempt int, at timestamptz, error text) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('at', utc_text(at), 'attempt', attempt, 'error', error, 'trace', '')
$$;
