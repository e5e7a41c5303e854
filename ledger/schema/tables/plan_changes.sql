CREATE TABLE plan_changes (
    event_id text NOT NULL,
    user_id uuid NOT NULL,
    plan text NOT NULL,
    occurred_at timestamptz NOT NULL,
    effective text NOT NULL,
    applied boolean NOT NULL,
    reason text,
    subscription text,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    anchor timestamptz,
    due_at timestamptz,
    PRIMARY KEY (event_id),
    CONSTRAINT plan_changes_anchor_exists CHECK (isfinite(anchor)),
    CONSTRAINT plan_changes_check CHECK (applied = (reason IS NULL)),
    CONSTRAINT plan_changes_effective_check CHECK (effective IN ('now', 'period_end')),
    CONSTRAINT plan_changes_event_id_check CHECK (octet_length(event_id) BETWEEN 1 AND 255),
    CONSTRAINT plan_changes_subscription_check CHECK (octet_length(subscription) BETWEEN 1 AND 255)
);

COMMENT ON TABLE plan_changes IS
    'Plan changes that a payment provider reported, by its event ids. A repeated event changes nothing.';
COMMENT ON COLUMN plan_changes.event_id IS
    'The provider''s id of the event.';
COMMENT ON COLUMN plan_changes.user_id IS
    'The user.';
COMMENT ON COLUMN plan_changes.plan IS
    'The plan that the event named.';
COMMENT ON COLUMN plan_changes.occurred_at IS
    'When the change happened at the provider; older events than the last applied one are not applied.';
COMMENT ON COLUMN plan_changes.effective IS
    'now, or period_end.';
COMMENT ON COLUMN plan_changes.applied IS
    'Whether the event changed the plan.';
COMMENT ON COLUMN plan_changes.reason IS
    'Why it was not applied: older than another event, or the end of a superseded subscription.';
COMMENT ON COLUMN plan_changes.subscription IS
    'The provider''s id of the subscription, if the event named one.';
COMMENT ON COLUMN plan_changes.recorded_at IS
    'When the change was written.';
COMMENT ON COLUMN plan_changes.anchor IS
    'The anchor of the billing periods that the event asked for, if it named a paid period.';
COMMENT ON COLUMN plan_changes.due_at IS
    'When a change at the end of a period takes effect.';

CREATE INDEX plan_changes_of_user ON plan_changes (user_id, occurred_at DESC);
