-- When an attempt started. River's leader may be another program's client, which rescues a job as stuck by its
-- attempted_at. A process therefore moves attempted_at of long attempts forward, and stores the true start in the
-- metadata with the attempt's claim.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: check_attempts, settle_many, fail_attempt; ledger/src/attempts/sql/end.sql; ledger/src/audit/sql/i2_running.sql, i5_ownerless.sql and i5_unheld.sql,
-- ledger/src/read/sql/job_details.sql and job_view.sql, ledger/src/reconciliation/sql/keep_finished.sql.
CREATE OR REPLACE FUNCTION attempt_started_at(metadata jsonb, attempt smallint, attempted_by text[], attempted_at timestamptz)
RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN metadata #>> '{weir:started,claim}' = claim_of(attempt, attempted_by)
                THEN (metadata #>> '{weir:started,at}')::timestamptz
                ELSE attempted_at END
$$;
