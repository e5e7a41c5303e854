-- Rows that triggers of other programs write inside Weir's statements count, whatever changed the job.
CREATE OR REPLACE TRIGGER count_delete AFTER DELETE ON quota_reservations REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT
    WHEN (coalesce(current_setting('weir.counters', true), '') NOT IN ('kept', pg_trigger_depth()::text))
    EXECUTE FUNCTION count_reservations();
CREATE OR REPLACE TRIGGER count_insert AFTER INSERT ON quota_reservations REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT
    WHEN (coalesce(current_setting('weir.counters', true), '') NOT IN ('kept', pg_trigger_depth()::text))
    EXECUTE FUNCTION count_reservations();
CREATE OR REPLACE TRIGGER count_update AFTER UPDATE ON quota_reservations REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT
    WHEN (coalesce(current_setting('weir.counters', true), '') NOT IN ('kept', pg_trigger_depth()::text))
    EXECUTE FUNCTION count_reservations();
CREATE OR REPLACE TRIGGER count_delete AFTER DELETE ON usage_events REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT
    WHEN (coalesce(current_setting('weir.counters', true), '') NOT IN ('kept', pg_trigger_depth()::text))
    EXECUTE FUNCTION count_usage_events();
CREATE OR REPLACE TRIGGER count_insert AFTER INSERT ON usage_events REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT
    WHEN (coalesce(current_setting('weir.counters', true), '') NOT IN ('kept', pg_trigger_depth()::text))
    EXECUTE FUNCTION count_usage_events();
CREATE OR REPLACE TRIGGER count_update AFTER UPDATE ON usage_events REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT
    WHEN (coalesce(current_setting('weir.counters', true), '') NOT IN ('kept', pg_trigger_depth()::text))
    EXECUTE FUNCTION count_usage_events();
