-- The usage that a handler reported for its job, from River's metadata; null without a report. The metadata may contain
-- any number, so it is clamped to a bigint.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: emit_job_ends, settle_many; ledger/src/audit/sql/i3_charges.sql.
CREATE OR REPLACE FUNCTION used_of(metadata jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(metadata -> 'weir:used') = 'number'
                THEN least(greatest(trunc((metadata ->> 'weir:used')::numeric), 0), 9223372036854775807)::bigint END
$$;
