-- The plan of a user as it counts for a meter: that of the active subscription, or else the default one. Each statement
-- has it put in, as if it stood there.
CREATE FUNCTION plan_of(of_user uuid, meter text) RETURNS TABLE (tier text, lane text, slots int)
LANGUAGE sql STABLE AS $$
    SELECT p.tier::text, p.lane, l.slots
    FROM subscription_plans p
    JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = meter
    WHERE p.id = coalesce(
        (SELECT s.plan_id FROM user_subscriptions s WHERE s.user_id = of_user AND s.status = 'active'),
        (SELECT d.id FROM subscription_plans d WHERE d.is_default))
    OFFSET 0
$$;
