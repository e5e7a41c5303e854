-- The start of a user's billing period around a moment. Without a subscription, periods are calendar months.
CREATE OR REPLACE FUNCTION period_start_of(of_user uuid, at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT (billing_period(coalesce(
        (SELECT s.current_period_start FROM user_subscriptions s WHERE s.user_id = of_user AND s.status = 'active'),
        timestamptz '2000-01-01 00:00:00+00'), at)).period_start
$$;
