CREATE TABLE limit_overrides (
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    month bigint,
    day bigint,
    hour bigint,
    minute bigint,
    slots int,
    expires_at timestamptz,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    burst int,
    PRIMARY KEY (user_id, event_type),
    CONSTRAINT limit_overrides_burst_check CHECK (burst > 0),
    CONSTRAINT limit_overrides_day_check CHECK (day >= -1),
    CONSTRAINT limit_overrides_expires_at_exists CHECK (isfinite(expires_at) AND (expires_at <= '9999-12-30 22:00:00.999999+00')),
    CONSTRAINT limit_overrides_hour_check CHECK (hour >= -1),
    CONSTRAINT limit_overrides_minute_check CHECK (minute >= -1),
    CONSTRAINT limit_overrides_month_check CHECK (month >= -1),
    CONSTRAINT limit_overrides_slots_check CHECK (slots > 0),
    FOREIGN KEY (event_type) REFERENCES meters(name) ON DELETE CASCADE
);

COMMENT ON TABLE limit_overrides IS
    'Limits of one user that replace the plan''s. Null: the plan''s limit; -1: unlimited.';
COMMENT ON COLUMN limit_overrides.user_id IS
    'The user.';
COMMENT ON COLUMN limit_overrides.event_type IS
    'The meter.';
COMMENT ON COLUMN limit_overrides.month IS
    'The limit of a billing period; -1 is unlimited, null is the plan''s.';
COMMENT ON COLUMN limit_overrides.day IS
    'The limit of a day; -1 is unlimited, null is the plan''s.';
COMMENT ON COLUMN limit_overrides.hour IS
    'The limit of an hour; -1 is unlimited, null is the plan''s.';
COMMENT ON COLUMN limit_overrides.minute IS
    'The limit of a minute; -1 is unlimited, null is the plan''s.';
COMMENT ON COLUMN limit_overrides.slots IS
    'Slots instead of the plan''s.';
COMMENT ON COLUMN limit_overrides.expires_at IS
    'When the override ends; null: never.';
COMMENT ON COLUMN limit_overrides.changed_at IS
    'Maintenance promotes parked jobs of holders with a recently changed override.';
COMMENT ON COLUMN limit_overrides.burst IS
    'Jobs at once on idle workers, instead of the plan''s.';

CREATE INDEX limit_overrides_changed ON limit_overrides (changed_at);

CREATE TRIGGER emit_override_thresholds AFTER INSERT OR DELETE OR UPDATE ON limit_overrides
    FOR EACH ROW EXECUTE FUNCTION emit_override_thresholds();
