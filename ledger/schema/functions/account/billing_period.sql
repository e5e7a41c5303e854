-- The billing period around a moment, in calendar months and UTC. Months are counted from the anchor and not from the
-- previous period, so an anchor on the 31st is the 31st again after February. Returns no row for a null.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: account_of, apply_due_plan, paid_anchor, period_start_of; plan_change_effect.sql, set_plan.sql, usage_by_period.sql,
-- import_subscriptions.sql, import_usage.sql and import_reservations.sql of ledger/src/control/sql/; ledger/src/audit/sql/i3_accounts.sql.
CREATE OR REPLACE FUNCTION billing_period(anchor timestamptz, at timestamptz)
RETURNS TABLE (period_start timestamptz, period_end timestamptz)
LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 1 AS $$
    SELECT (k.a + make_interval(months => k.n)) AT TIME ZONE 'UTC',
           (k.a + make_interval(months => k.n + 1)) AT TIME ZONE 'UTC'
    FROM (
        SELECT m.a, m.n - (m.a + make_interval(months => m.n) > m.t)::int AS n
        FROM (
            SELECT u.a, u.t,
                   (12 * (date_part('year', u.t) - date_part('year', u.a))
                    + date_part('month', u.t) - date_part('month', u.a))::int AS n
            FROM (SELECT anchor AT TIME ZONE 'UTC' AS a, at AT TIME ZONE 'UTC' AS t OFFSET 0) u
            OFFSET 0
        ) m
        OFFSET 0
    ) k
    WHERE anchor IS NOT NULL AND at IS NOT NULL
$$;
