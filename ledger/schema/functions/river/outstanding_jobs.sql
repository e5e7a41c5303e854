-- The jobs of attempts with an outstanding answer. They are pending, and count as running. outstanding_answers() checks
-- one job by the same rule.
-- A function and not a view, because PostgreSQL refuses to change the type of a column that a view uses, and the columns
-- are River's. One SELECT, not STRICT and without SET, so that the planner inlines it.
-- Cost: reads all outstanding attempts, with one look-up by key each.
-- Callers: ledger/src/read/sql/busiest_holders.sql, ledger/src/read/sql/holder_slots.sql,
-- ledger/src/read/sql/lane_jobs.sql, ledger/src/read/sql/lane_waiting.sql, ledger/src/read/sql/plan_jobs.sql.
CREATE OR REPLACE FUNCTION outstanding_jobs() RETURNS TABLE (job_id bigint, queue text)
LANGUAGE sql STABLE ROWS 10 AS $$
    SELECT j.id, j.queue
    FROM outstanding_attempts o
    JOIN river_job j ON j.id = o.job_id
    WHERE j.state = 'pending' AND o.claim = claim_of(j.attempt, j.attempted_by)
$$;
