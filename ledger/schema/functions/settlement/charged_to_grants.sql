-- The part of a charge that grants pay for: the plan's part of the reservation is charged first, and overage last.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: settle_many, settled_windows.
CREATE OR REPLACE FUNCTION charged_to_grants(reserved bigint, overage bigint, from_grants bigint, charged bigint)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(greatest(charged - greatest(reserved - overage - from_grants, 0), 0), from_grants)
$$;
