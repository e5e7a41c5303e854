CREATE TABLE quota_balances (
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    period_start timestamptz NOT NULL,
    used bigint NOT NULL DEFAULT 0,
    reserved bigint NOT NULL DEFAULT 0,
    granted_limit bigint NOT NULL DEFAULT 0,
    span text NOT NULL DEFAULT 'month',
    from_grants bigint NOT NULL DEFAULT 0,
    changes bigint NOT NULL DEFAULT 0,
    generation bigint GENERATED ALWAYS AS (changes / 64) STORED,
    PRIMARY KEY (user_id, event_type, span, period_start),
    CONSTRAINT quota_balances_reserved_check CHECK (reserved >= 0),
    CONSTRAINT quota_balances_span_check CHECK (span IN ('month', 'day', 'hour', 'minute')),
    CONSTRAINT quota_balances_used_check CHECK (used >= 0)
)
-- See holders.
WITH (fillfactor = 30);

COMMENT ON TABLE quota_balances IS
    'Used and reserved amounts per user, meter and window, so that the cost of a reservation does not depend on the history.';
COMMENT ON COLUMN quota_balances.user_id IS
    'The user.';
COMMENT ON COLUMN quota_balances.event_type IS
    'The meter.';
COMMENT ON COLUMN quota_balances.period_start IS
    'The start of the window.';
COMMENT ON COLUMN quota_balances.used IS
    'Charged in this window.';
COMMENT ON COLUMN quota_balances.reserved IS
    'Held by unfinished jobs in this window.';
COMMENT ON COLUMN quota_balances.granted_limit IS
    'The limit when a reservation was last accepted; 9223372036854775807 is unlimited.';
COMMENT ON COLUMN quota_balances.span IS
    'The kind of window that starts at period_start.';
COMMENT ON COLUMN quota_balances.from_grants IS
    'The part of used and reserved that grants pay for; months only.';
COMMENT ON COLUMN quota_balances.changes IS
    'The number of changes of the amounts.';
COMMENT ON COLUMN quota_balances.generation IS
    'Orders the row''s versions in quota_balances_newest.';

-- See holders_newest.
CREATE INDEX quota_balances_newest ON quota_balances (user_id, event_type, span, period_start, generation);
CREATE INDEX quota_balances_over ON quota_balances (period_start) WHERE span <> 'month';

CREATE TRIGGER check_threshold_subscribers BEFORE UPDATE OF used ON quota_balances
    FOR EACH STATEMENT EXECUTE FUNCTION check_threshold_subscribers();
CREATE TRIGGER emit_first_usage AFTER INSERT ON quota_balances
    FOR EACH ROW WHEN (NEW.used > 0 AND (NEW.span IN ('month', 'day')))
    EXECUTE FUNCTION emit_usage();
CREATE TRIGGER emit_usage AFTER UPDATE OF used ON quota_balances
    FOR EACH ROW WHEN (current_setting('weir.thresholds', true) = 'thresholds')
    EXECUTE FUNCTION emit_usage();
