-- What a user may use of a meter at a moment: by the plan in force, or the default plan; the user's overrides replace
-- the plan's limits, and are hard. anchor: where the billing periods are counted from.
-- Errors: P0001 when the plan has no limits for the meter.
CREATE OR REPLACE FUNCTION limits_of(of_user uuid, meter text, moment timestamptz)
RETURNS TABLE (tier text, lane text, slots int, own_slots int, max_waiting int, month bigint, day bigint, hour bigint,
               minute bigint, counted smallint, anchor timestamptz,
               month_ceiling bigint, day_ceiling bigint, hour_ceiling bigint, minute_ceiling bigint)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT p.tier::text, p.lane, coalesce(l.slots, raise_no_limits(meter)), own.slots, p.max_waiting,
           nullif(coalesce(own.month, l.month), -1), nullif(coalesce(own.day, l.day), -1),
           nullif(coalesce(own.hour, l.hour), -1), nullif(coalesce(own.minute, l.minute), -1), l.counted,
           s.anchor,
           CASE WHEN own.month IS NULL THEN l.month_ceiling END, CASE WHEN own.day IS NULL THEN l.day_ceiling END,
           CASE WHEN own.hour IS NULL THEN l.hour_ceiling END, CASE WHEN own.minute IS NULL THEN l.minute_ceiling END
    FROM subscription_of(of_user, moment) s
    JOIN subscription_plans p ON p.id = s.plan_id
    LEFT JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = meter
    LEFT JOIN limit_overrides own
        ON own.user_id = of_user AND own.event_type = meter AND (own.expires_at IS NULL OR own.expires_at > moment)
$$;
