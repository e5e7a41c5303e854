-- Moments that programs can read: PostgreSQL has an infinite one and years of five digits, of which one in a row stopped
-- whoever read it. What never ends has none.
UPDATE grants SET expires_at = CASE WHEN expires_at < now() THEN timestamptz '2000-01-01 00:00:00+00' END
WHERE NOT (isfinite(expires_at) AND expires_at <= '9999-12-30 22:00:00.999999+00');
UPDATE limit_overrides SET expires_at = CASE WHEN expires_at < now() THEN timestamptz '2000-01-01 00:00:00+00' END
WHERE NOT (isfinite(expires_at) AND expires_at <= '9999-12-30 22:00:00.999999+00');
UPDATE user_subscriptions SET next_plan_id = NULL, next_plan_at = NULL
WHERE NOT (isfinite(next_plan_at) AND next_plan_at <= '9999-12-30 22:00:00.999999+00');
ALTER TABLE grants ADD CONSTRAINT grants_expires_at_exists
    CHECK (isfinite(expires_at) AND expires_at <= '9999-12-30 22:00:00.999999+00');
ALTER TABLE limit_overrides ADD CONSTRAINT limit_overrides_expires_at_exists
    CHECK (isfinite(expires_at) AND expires_at <= '9999-12-30 22:00:00.999999+00');
ALTER TABLE user_subscriptions ADD CONSTRAINT user_subscriptions_next_plan_at_exists
    CHECK (isfinite(next_plan_at) AND next_plan_at <= '9999-12-30 22:00:00.999999+00');
