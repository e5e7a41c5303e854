CREATE TABLE quota_thresholds (
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    span text NOT NULL,
    period_start timestamptz NOT NULL,
    percent smallint NOT NULL,
    used bigint NOT NULL,
    most bigint NOT NULL,
    ends_at timestamptz NOT NULL,
    reached_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, event_type, span, period_start, percent)
);

COMMENT ON TABLE quota_thresholds IS
    'Thresholds that were reached in windows that have not ended. Each is emitted once.';
COMMENT ON COLUMN quota_thresholds.user_id IS
    'The user.';
COMMENT ON COLUMN quota_thresholds.event_type IS
    'The meter.';
COMMENT ON COLUMN quota_thresholds.span IS
    'The kind of window: month or day.';
COMMENT ON COLUMN quota_thresholds.period_start IS
    'The start of the window.';
COMMENT ON COLUMN quota_thresholds.percent IS
    'The threshold, in percent of the limit.';
COMMENT ON COLUMN quota_thresholds.used IS
    'The usage when it was reached.';
COMMENT ON COLUMN quota_thresholds.most IS
    'The limit when it was reached.';
COMMENT ON COLUMN quota_thresholds.ends_at IS
    'The end of the window: then the row is deleted and quota.renewed is emitted.';
COMMENT ON COLUMN quota_thresholds.reached_at IS
    'When the threshold was reached.';

CREATE INDEX quota_thresholds_ending ON quota_thresholds (ends_at);
