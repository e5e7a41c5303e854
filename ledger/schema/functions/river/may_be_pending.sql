-- Whether a job may become pending: its unique key, if it has one, counts while it is pending. Otherwise another job
-- could take the key, and then this one could not become available again.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: admit_late; ledger/src/attempts/sql/await_answer.sql, ledger/src/settlement/sql/park_due.sql.
CREATE OR REPLACE FUNCTION may_be_pending(unique_key bytea, unique_states bit) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT unique_key IS NULL OR unique_states IS NULL OR river_job_state_in_bitmask(unique_states, 'pending')
$$;
