-- The start of a user's billing period around a moment. Without a subscription, billing periods are calendar months.
-- Cost: two look-ups by key.
-- Callers: apply_due_plan, weir_charge; ledger/src/control/plan.rs and import.rs, ledger/src/control/sql/adjust.sql, ledger/src/control/sql/used.sql.
CREATE OR REPLACE FUNCTION period_start_of(of_user uuid, at timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN (SELECT p.period_start FROM subscription_of(of_user, at) s CROSS JOIN LATERAL billing_period(s.anchor, at) p);
END
$$;
