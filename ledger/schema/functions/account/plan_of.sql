-- The plan of a user as it counts for a meter: that of the active subscription, else the default one. No row when the
-- plan has no limits for the meter. One SELECT and not STRICT, so that the planner inlines it.
CREATE OR REPLACE FUNCTION plan_of(of_user uuid, meter text)
RETURNS TABLE (tier text, lane text, slots int, own_slots int)
LANGUAGE sql STABLE AS $$
    SELECT p.tier::text, p.lane, l.slots,
           (SELECT o.slots FROM limit_overrides o
            WHERE o.user_id = of_user AND o.event_type = meter AND (o.expires_at IS NULL OR o.expires_at > now()))
    FROM subscription_of(of_user, now()) s
    JOIN subscription_plans p ON p.id = s.plan_id
    JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = meter
    OFFSET 0
$$;
