-- The name of a user's plan at a moment, as the API shows it; `anonymous` for a null user. Always one row.
-- One SELECT, not STRICT and without SET, so that the planner inlines it into the statement that joins it.
-- Cost: three look-ups by key.
-- Callers: weir_admit; ledger/src/read/sql/busiest_holders.sql, deleted_jobs.sql, job_view.sql, plan_jobs.sql and
-- plan_reservations.sql.
CREATE OR REPLACE FUNCTION tier_of(of_user uuid, at timestamptz) RETURNS TABLE (tier text)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT CASE WHEN of_user IS NULL THEN 'anonymous' ELSE p.tier::text END
    FROM subscription_of(of_user, at) s
    JOIN subscription_plans p ON p.id = s.plan_id
$$;
