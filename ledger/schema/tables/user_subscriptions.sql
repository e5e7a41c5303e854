CREATE TABLE user_subscriptions (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    user_id uuid NOT NULL,
    plan_id uuid NOT NULL,
    status subscription_status NOT NULL DEFAULT 'active',
    current_period_start timestamptz NOT NULL DEFAULT now(),
    current_period_end timestamptz NOT NULL DEFAULT (now() + interval '1 month'),
    canceled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    next_plan_id uuid,
    next_plan_at timestamptz,
    PRIMARY KEY (id),
    CONSTRAINT user_subscriptions_check CHECK ((status = 'canceled') = (canceled_at IS NOT NULL)),
    CONSTRAINT user_subscriptions_check1 CHECK ((next_plan_id IS NULL) = (next_plan_at IS NULL)),
    CONSTRAINT user_subscriptions_next_plan_at_exists CHECK (isfinite(next_plan_at) AND (next_plan_at <= '9999-12-30 22:00:00.999999+00')),
    FOREIGN KEY (next_plan_id) REFERENCES subscription_plans(id) ON DELETE RESTRICT,
    FOREIGN KEY (plan_id) REFERENCES subscription_plans(id) ON DELETE RESTRICT,
    FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

COMMENT ON TABLE user_subscriptions IS
    'The plan of each user. At most one subscription of a user is active.';
COMMENT ON COLUMN user_subscriptions.id IS
    'The subscription''s id.';
COMMENT ON COLUMN user_subscriptions.user_id IS
    'The user.';
COMMENT ON COLUMN user_subscriptions.plan_id IS
    'The plan.';
COMMENT ON COLUMN user_subscriptions.status IS
    'active, canceled or expired. A user has at most one active subscription.';
COMMENT ON COLUMN user_subscriptions.current_period_start IS
    'The anchor of the billing periods: they start on its day of the month. It does not move from period to period.';
COMMENT ON COLUMN user_subscriptions.current_period_end IS
    'The end of the billing period that the anchor starts.';
COMMENT ON COLUMN user_subscriptions.canceled_at IS
    'When it was canceled.';
COMMENT ON COLUMN user_subscriptions.created_at IS
    'When it was added.';
COMMENT ON COLUMN user_subscriptions.updated_at IS
    'Maintenance promotes parked jobs of users with a recently changed plan.';
COMMENT ON COLUMN user_subscriptions.next_plan_id IS
    'The plan from next_plan_at on. Maintenance copies it to plan_id later.';
COMMENT ON COLUMN user_subscriptions.next_plan_at IS
    'When the scheduled plan takes effect.';

CREATE INDEX user_subscriptions_changed ON user_subscriptions (updated_at);
CREATE INDEX user_subscriptions_next ON user_subscriptions (next_plan_at) WHERE next_plan_at IS NOT NULL;
CREATE UNIQUE INDEX user_subscriptions_active ON user_subscriptions (user_id) WHERE status = 'active';

CREATE TRIGGER emit_plan_change AFTER INSERT OR UPDATE OF plan_id, status ON user_subscriptions
    FOR EACH ROW EXECUTE FUNCTION emit_plan_change();
CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON user_subscriptions
    FOR EACH ROW EXECUTE FUNCTION touch_updated_at();
