-- The grants of a user and meter that are not used up, in the order in which they are drawn on: earliest expiry first.
-- Rust sorts them the same way in policy/src/grants.rs (draw).
--
-- - n: counts from 1.
-- - before: the sum of all earlier grants.
--
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: the index range of the grants that are not used up.
-- Callers: account_of, draw_grants.
CREATE OR REPLACE FUNCTION grants_left(of_user uuid, meter text, moment timestamptz)
RETURNS TABLE (id uuid, amount bigint, expires_at timestamptz, created_at timestamptz, n bigint, before numeric)
LANGUAGE sql STABLE AS $$
    SELECT g.id, g.amount - g.reserved - g.used, g.expires_at, g.created_at,
           row_number() OVER first_ends,
           sum(g.amount - g.reserved - g.used) OVER first_ends - (g.amount - g.reserved - g.used)
    FROM grants g
    WHERE g.user_id = of_user AND g.event_type = meter AND g.used < g.amount AND g.reserved + g.used < g.amount
      AND (g.expires_at IS NULL OR g.expires_at > moment)
    WINDOW first_ends AS (ORDER BY g.expires_at NULLS LAST, g.created_at, g.id)
$$;
