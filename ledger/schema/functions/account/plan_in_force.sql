-- The plan of a subscription at a moment: a scheduled plan is in force from its time on, even before it is written to
-- plan_id.
CREATE OR REPLACE FUNCTION plan_in_force(subscription user_subscriptions, at timestamptz)
RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN subscription.next_plan_at <= at THEN subscription.next_plan_id ELSE subscription.plan_id END
$$;
