CREATE TABLE plan_limits (
    plan_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    month bigint,
    day bigint,
    hour bigint,
    minute bigint,
    slots int NOT NULL,
    counted smallint NOT NULL DEFAULT 0,
    month_ceiling bigint,
    day_ceiling bigint,
    hour_ceiling bigint,
    minute_ceiling bigint,
    burst int,
    PRIMARY KEY (plan_id, event_type),
    CONSTRAINT plan_limits_day_ceiling_check CHECK (day_ceiling >= 0),
    CONSTRAINT plan_limits_day_check CHECK (day >= 0),
    CONSTRAINT plan_limits_hour_ceiling_check CHECK (hour_ceiling >= 0),
    CONSTRAINT plan_limits_hour_check CHECK (hour >= 0),
    CONSTRAINT plan_limits_minute_ceiling_check CHECK (minute_ceiling >= 0),
    CONSTRAINT plan_limits_minute_check CHECK (minute >= 0),
    CONSTRAINT plan_limits_month_ceiling_check CHECK (month_ceiling >= 0),
    CONSTRAINT plan_limits_month_check CHECK (month >= 0),
    CONSTRAINT plan_limits_slots_check CHECK (slots > 0),
    FOREIGN KEY (event_type) REFERENCES meters(name) ON DELETE CASCADE,
    FOREIGN KEY (plan_id) REFERENCES subscription_plans(id) ON DELETE CASCADE
);

COMMENT ON TABLE plan_limits IS
    'The amounts of a meter that a plan allows per window. Null is unlimited. A month starts on the subscription''s anchor day; days, hours and minutes are UTC''s.';
COMMENT ON COLUMN plan_limits.plan_id IS
    'The plan.';
COMMENT ON COLUMN plan_limits.event_type IS
    'The meter.';
COMMENT ON COLUMN plan_limits.month IS
    'The limit of a billing period; null is unlimited.';
COMMENT ON COLUMN plan_limits.day IS
    'The limit of a day; null is unlimited.';
COMMENT ON COLUMN plan_limits.hour IS
    'The limit of an hour; null is unlimited.';
COMMENT ON COLUMN plan_limits.minute IS
    'The limit of a minute; null is unlimited.';
COMMENT ON COLUMN plan_limits.slots IS
    'The number of jobs per holder that may run at once, however busy the workers are.';
COMMENT ON COLUMN plan_limits.counted IS
    'A bit set of the shorter windows in which any plan limits the meter: 1 day, 2 hour, 4 minute.';
COMMENT ON COLUMN plan_limits.month_ceiling IS
    'The amount up to which usage over the limit is accepted; null: the limit is hard.';
COMMENT ON COLUMN plan_limits.day_ceiling IS
    'The ceiling of a soft daily limit.';
COMMENT ON COLUMN plan_limits.hour_ceiling IS
    'The ceiling of a soft hourly limit.';
COMMENT ON COLUMN plan_limits.minute_ceiling IS
    'The ceiling of a soft limit per minute.';
COMMENT ON COLUMN plan_limits.burst IS
    'The number of jobs per holder that may run at once on workers that would be idle; null: as many as slots.';

CREATE TRIGGER count_limited_windows AFTER INSERT OR DELETE OR UPDATE OF day, hour, minute ON plan_limits
    FOR EACH STATEMENT EXECUTE FUNCTION count_limited_windows();
CREATE TRIGGER count_limited_windows_before BEFORE INSERT OR DELETE OR UPDATE OF day, hour, minute ON plan_limits
    FOR EACH STATEMENT EXECUTE FUNCTION count_limited_windows();
