CREATE TABLE subscription_plans (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    tier plan_tier NOT NULL,
    retention_days int,
    created_at timestamptz NOT NULL DEFAULT now(),
    lane text NOT NULL DEFAULT 'default',
    is_default boolean NOT NULL DEFAULT false,
    max_waiting int,
    PRIMARY KEY (id),
    UNIQUE (tier),
    CONSTRAINT subscription_plans_lane_check CHECK (lane IN ('priority', 'default')),
    CONSTRAINT subscription_plans_max_waiting_check CHECK (max_waiting > 0),
    CONSTRAINT subscription_plans_retention_days_check CHECK (retention_days > 0)
);

COMMENT ON TABLE subscription_plans IS
    'The plans.';
COMMENT ON COLUMN subscription_plans.id IS
    'The plan''s id.';
COMMENT ON COLUMN subscription_plans.tier IS
    'The name of the plan.';
COMMENT ON COLUMN subscription_plans.retention_days IS
    'The retention of results; null keeps them indefinitely.';
COMMENT ON COLUMN subscription_plans.created_at IS
    'When it was added.';
COMMENT ON COLUMN subscription_plans.lane IS
    'Which lane the jobs of the plan use.';
COMMENT ON COLUMN subscription_plans.is_default IS
    'The plan of holders without an active subscription.';
COMMENT ON COLUMN subscription_plans.max_waiting IS
    'The maximum number of a holder''s waiting jobs per meter: for a slot, their start time or their next attempt; null is unlimited.';

CREATE UNIQUE INDEX subscription_plans_default ON subscription_plans (is_default) WHERE is_default;
