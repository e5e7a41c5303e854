-- A user's plan at a moment, and the anchor of its billing periods. Both come from the active subscription. Its
-- scheduled plan takes effect at next_plan_at, even before it is written to plan_id. Without a subscription, and for a
-- null user: the default plan and calendar months. Always one row.
--
-- This is the one place that decides which plan counts now. Two functions have parts of the rule: emit_plan_change() for
-- a replaced row, and apply_due_plan(), which writes the scheduled plan.
-- One SELECT, not STRICT and without SET, so that the planner
-- inlines it into the statement that joins it.
-- Cost: two look-ups by key.
-- Callers: period_start_of, plan_change_effect, plan_of, tier_of; plan_status.sql, set_plan.sql, usage_by_period.sql,
-- import_subscriptions.sql, import_usage.sql and import_reservations.sql of ledger/src/control/sql/;
-- ledger/src/reconciliation/sql/clean_finished.sql and keep_finished.sql; ledger/src/audit/sql/i3_accounts.sql.
CREATE OR REPLACE FUNCTION subscription_of(of_user uuid, at timestamptz)
RETURNS TABLE (plan_id uuid, anchor timestamptz)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT coalesce(CASE WHEN s.next_plan_at <= at THEN s.next_plan_id ELSE s.plan_id END, d.id),
           coalesce(s.current_period_start, timestamptz '2000-01-01 00:00:00+00')
    FROM subscription_plans d
    LEFT JOIN user_subscriptions s ON s.user_id = of_user AND s.status = 'active'
    WHERE d.is_default
$$;
