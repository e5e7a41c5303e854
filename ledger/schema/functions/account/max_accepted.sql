-- The amount above which nothing is accepted: the limit, or a soft limit's ceiling. A ceiling below the limit has no
-- effect. Null is unlimited.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: reserve_in_windows, room_in; ledger/src/audit/sql/i1_limits.sql.
CREATE OR REPLACE FUNCTION max_accepted(most bigint, ceiling bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN most IS NOT NULL THEN greatest(most, ceiling) END
$$;
