-- A job's error as its owner sees it. Omits the error that River reports for every job cancelled while it ran, because
-- the state shows that.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: ledger/src/read/sql/failures.sql, ledger/src/read/sql/job_view.sql,
-- ledger/src/reconciliation/sql/keep_finished.sql.
CREATE OR REPLACE FUNCTION error_of(metadata jsonb, errors jsonb[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(reason_of(metadata, errors),
                    nullif(errors[array_upper(errors, 1)] ->> 'error', 'JobCancelError: job cancelled remotely'))
$$;
