-- The charge for a completed job: the usage that its handler reported, clamped to 0 up to the reserved amount; null
-- charges all of it. Rust: policy/src/admission.rs (charge).
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: settle_many, emit_job_ends; ledger/src/audit/sql/i3_charges.sql.
CREATE OR REPLACE FUNCTION charge_of(reserved bigint, used bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(greatest(coalesce(used, reserved), 0), reserved)
$$;
