-- The month of an account moves into its row in `holders` with its next reservation. Until then, and for all other windows,
-- `quota_balances` stays as `window_balances`. A view has its name.
ALTER TABLE quota_balances RENAME TO window_balances;
ALTER TABLE window_balances RENAME CONSTRAINT quota_balances_pkey TO window_balances_pkey;
ALTER TABLE window_balances RENAME CONSTRAINT quota_balances_reserved_check TO window_balances_reserved_check;
ALTER TABLE window_balances RENAME CONSTRAINT quota_balances_span_check TO window_balances_span_check;
ALTER TABLE window_balances RENAME CONSTRAINT quota_balances_used_check TO window_balances_used_check;
ALTER INDEX quota_balances_newest RENAME TO window_balances_newest;
ALTER INDEX quota_balances_over RENAME TO window_balances_over;
DROP TRIGGER emit_first_usage ON window_balances;
CREATE TRIGGER emit_first_usage AFTER INSERT ON window_balances
    FOR EACH ROW WHEN (NEW.used > 0 AND NEW.span IN ('month', 'day'))
    EXECUTE FUNCTION emit_usage();
DROP TRIGGER emit_usage ON window_balances;
CREATE TRIGGER emit_usage AFTER UPDATE OF used ON window_balances
    FOR EACH ROW WHEN (current_setting('weir.thresholds', true) = 'thresholds' AND NEW.used > OLD.used AND NEW.span IN ('month', 'day'))
    EXECUTE FUNCTION emit_usage();
ALTER TABLE holders
    ADD period_start timestamptz,
    ADD used bigint NOT NULL DEFAULT 0,
    ADD reserved bigint NOT NULL DEFAULT 0,
    ADD granted_limit bigint NOT NULL DEFAULT 0,
    ADD from_grants bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT holders_amounts CHECK (used >= 0 AND reserved >= 0);
CREATE TRIGGER check_threshold_subscribers BEFORE UPDATE OF used ON holders
    FOR EACH STATEMENT EXECUTE FUNCTION check_threshold_subscribers();
CREATE TRIGGER emit_usage AFTER UPDATE OF used ON holders
    FOR EACH ROW WHEN (current_setting('weir.thresholds', true) = 'thresholds' AND NEW.used > OLD.used)
    EXECUTE FUNCTION emit_usage();
DROP TRIGGER end_reservations ON users;
CREATE TRIGGER end_reservations BEFORE DELETE ON users
    FOR EACH ROW EXECUTE FUNCTION end_reservations_of_users();
COMMENT ON TABLE holders IS
    'The accounts that jobs count against: a user, or an anonymous client address. One row per meter, with its slots and its month. Every reservation and settlement locks this row first, so nothing else needs a lock.';
COMMENT ON COLUMN holders.period_start IS
    'The start of the month that used to from_grants count; null until the next reservation. Other months are in window_balances.';
COMMENT ON COLUMN holders.used IS
    'Charged in this month.';
COMMENT ON COLUMN holders.reserved IS
    'Held by unfinished jobs in this month.';
COMMENT ON COLUMN holders.granted_limit IS
    'The limit when a reservation was last accepted; 9223372036854775807 is unlimited.';
COMMENT ON COLUMN holders.from_grants IS
    'The part of used and reserved that grants pay for.';
COMMENT ON TABLE window_balances IS
    'Used and reserved amounts per user, meter and window, of all windows but the month in the account''s row in holders.';
COMMENT ON COLUMN window_balances.generation IS
    'Orders the row''s versions in window_balances_newest.';
