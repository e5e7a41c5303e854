-- The state of a job after a failed or lost attempt: cancelled when its cancellation was requested, discarded without
-- attempts left, else the state `again`.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: check_attempts, fail_attempt; ledger/src/attempts/sql/end.sql,
-- ledger/src/reconciliation/sql/take_over.sql.
CREATE OR REPLACE FUNCTION state_after_failure(metadata jsonb, attempt int, max_attempts int, again text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN metadata ? 'cancel_attempted_at' THEN 'cancelled'
                WHEN attempt >= max_attempts THEN 'discarded'
                ELSE again END
$$;
