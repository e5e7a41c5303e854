-- Identifies an attempt at a job. The attempt's number is not enough: after a process dies, its attempt starts again
-- under the same number.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: attempt_started_at, check_attempts, claim_jobs, outstanding_answers, outstanding_jobs; await_answer.sql,
-- end_of_attempt.sql, record_progress.sql, resume.sql and end.sql of ledger/src/attempts/sql/.
CREATE OR REPLACE FUNCTION claim_of(attempt smallint, attempted_by text[]) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT attempt::text || '.' || coalesce(cardinality(attempted_by), 0)::text
$$;
