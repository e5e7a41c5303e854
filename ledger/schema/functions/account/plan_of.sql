-- A user's plan at a moment and its limits for a meter: the plan of the active subscription, else the default plan. The
-- user's overrides replace the plan's limits, and are hard. Returns no row when the plan has no limits for the meter.
--
-- - attributes: the plan's row, for its optional attributes.
-- - counted: the windows other than the month in which the meter is counted.
-- - anchor: the start from which billing periods are counted.
-- - burst: null, or less than the slots in force, allows no more jobs than those.
--
-- One SELECT, not STRICT and without SET, so that the planner inlines it and drops the columns that its caller does not
-- use.
-- Cost: five look-ups by key.
-- Callers: account_of, settle_many, accounts_to_lend_to; ledger/src/audit/sql/i1_limits.sql, i2_slots.sql and i5_waiting.sql,
-- ledger/src/settlement/sql/waiting.sql.
CREATE OR REPLACE FUNCTION plan_of(of_user uuid, meter text, at timestamptz)
RETURNS TABLE (tier text, lane text, slots int, own_slots int, attributes subscription_plans, anchor timestamptz, counted smallint,
               month bigint, day bigint, hour bigint, minute bigint,
               month_ceiling bigint, day_ceiling bigint, hour_ceiling bigint, minute_ceiling bigint, burst int)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT p.tier::text, p.lane, l.slots, own.slots, p, s.anchor, l.counted,
           nullif(coalesce(own.month, l.month), -1), nullif(coalesce(own.day, l.day), -1),
           nullif(coalesce(own.hour, l.hour), -1), nullif(coalesce(own.minute, l.minute), -1),
           CASE WHEN own.month IS NULL THEN l.month_ceiling END, CASE WHEN own.day IS NULL THEN l.day_ceiling END,
           CASE WHEN own.hour IS NULL THEN l.hour_ceiling END, CASE WHEN own.minute IS NULL THEN l.minute_ceiling END,
           coalesce(own.burst, l.burst)
    FROM subscription_of(of_user, at) s
    JOIN subscription_plans p ON p.id = s.plan_id
    JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = meter
    LEFT JOIN limit_overrides own
        ON own.user_id = of_user AND own.event_type = meter AND (own.expires_at IS NULL OR own.expires_at > at)
    OFFSET 0
$$;
