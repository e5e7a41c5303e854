CREATE TABLE window_balances (
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
    CONSTRAINT window_balances_reserved_check CHECK (reserved >= 0),
    CONSTRAINT window_balances_span_check CHECK (span IN ('month', 'day', 'hour', 'minute')),
    CONSTRAINT window_balances_used_check CHECK (used >= 0)
)
-- See holders.
WITH (fillfactor = 30);

COMMENT ON TABLE window_balances IS
    'Used and reserved amounts per user, meter and window, of all windows but the month in the account''s row in holders.';
COMMENT ON COLUMN window_balances.user_id IS
    'The user.';
COMMENT ON COLUMN window_balances.event_type IS
    'The meter.';
COMMENT ON COLUMN window_balances.period_start IS
    'The start of the window.';
COMMENT ON COLUMN window_balances.used IS
    'Charged in this window.';
COMMENT ON COLUMN window_balances.reserved IS
    'Held by unfinished jobs in this window.';
COMMENT ON COLUMN window_balances.granted_limit IS
    'The limit when a reservation was last accepted; 9223372036854775807 is unlimited.';
COMMENT ON COLUMN window_balances.span IS
    'The kind of window that starts at period_start.';
COMMENT ON COLUMN window_balances.from_grants IS
    'The part of used and reserved that grants pay for; months only.';
COMMENT ON COLUMN window_balances.changes IS
    'The number of changes of the amounts.';
COMMENT ON COLUMN window_balances.generation IS
    'Orders the row''s versions in window_balances_newest.';

-- See holders_newest.
CREATE INDEX window_balances_newest ON window_balances (user_id, event_type, span, period_start, generation);
CREATE INDEX window_balances_over ON window_balances (period_start) WHERE span <> 'month';

CREATE TRIGGER check_threshold_subscribers BEFORE UPDATE OF used ON window_balances
    FOR EACH STATEMENT EXECUTE FUNCTION check_threshold_subscribers();
CREATE TRIGGER emit_first_usage AFTER INSERT ON window_balances
    FOR EACH ROW WHEN (NEW.used > 0 AND NEW.span IN ('month', 'day'))
    EXECUTE FUNCTION emit_usage();
CREATE TRIGGER emit_usage AFTER UPDATE OF used ON window_balances
    FOR EACH ROW WHEN (current_setting('weir.thresholds', true) = 'thresholds' AND NEW.used > OLD.used AND NEW.span IN ('month', 'day'))
    EXECUTE FUNCTION emit_usage();
