-- The slot limit of a holder: its override, else the configured limit of its plan, else the plan's own. A holder
-- without a plan for the meter, such as a client address, has the limit of an address. Rust decides the same in
-- ledger/src/rules.rs.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: account_of, slots_in_force.
CREATE OR REPLACE FUNCTION slot_limit(of_plan text, own_slots int, configured bigint, slots_of_plan int, anonymous bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN of_plan IS NULL THEN anonymous ELSE coalesce(own_slots, configured, slots_of_plan) END
$$;
