-- The lifetime of an idempotency key. After that, the same key creates another job.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: submit_many; ledger/src/reconciliation/sql/clean_submissions.sql and clean_folded.sql. Documents that name the
-- 24 hours: weir_submit.sql, tables/weir_jobs.sql and folded_submissions.sql, native/src/api/jobs.rs and batch.rs,
-- clients/go/weir.go, clients/typescript/weir.ts, docs/tutorial/first-session.md.
CREATE OR REPLACE FUNCTION key_lifetime() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT interval '24 hours'
$$;
