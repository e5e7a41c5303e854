-- The amount that a window still accepts; null is unlimited. Rust: policy/src/admission.rs (Allowance::remaining).
--
-- - paid: the part of used and reserved that grants pay for.
-- - granted: what is left of the grants.
--
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: account_of, quota_json, submit_many.
CREATE OR REPLACE FUNCTION room_in(most bigint, ceiling bigint, used bigint, reserved bigint, paid bigint, granted bigint)
RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN most IS NOT NULL
                THEN greatest(max_accepted(most, ceiling)::numeric - (used::numeric + reserved - paid), 0) + granted END
$$;
