-- Returns the attempt's deadline if the job is pending and its answer is outstanding; otherwise no row. Such an attempt
-- counts as running. Compares the claim, because the row may belong to an earlier attempt. outstanding_jobs() lists all
-- of them.
--
-- A function in FROM, not STRICT and without SET, so that the planner inlines it. It does not inline a function that
-- returns a value and contains a subquery.
-- Cost: one look-up by key.
-- Callers: weir_extend; ledger/src/audit/sql/i2_running.sql, ledger/src/audit/sql/i5_unanswered.sql,
-- ledger/src/audit/sql/i5_unheld.sql, ledger/src/control/sql/cancel_waiting.sql, ledger/src/read/sql/job_details.sql,
-- ledger/src/read/sql/job_view.sql, ledger/src/reconciliation/sql/cancel_abandoned.sql.
CREATE OR REPLACE FUNCTION outstanding_answers(job bigint, attempt smallint, attempted_by text[])
RETURNS TABLE (deadline_at timestamptz)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT o.deadline_at FROM outstanding_attempts o
    WHERE o.job_id = job AND o.claim = claim_of(attempt, attempted_by)
$$;
