-- Only Weir's functions write reservations and usage events, so no trigger counts the rows of others.
DROP TRIGGER count_insert ON quota_reservations;
DROP TRIGGER count_update ON quota_reservations;
DROP TRIGGER count_delete ON quota_reservations;
DROP TRIGGER fill ON quota_reservations;
CREATE TRIGGER fill BEFORE INSERT ON quota_reservations
    FOR EACH ROW WHEN (NEW.period_start IS NULL AND NEW.user_id IS NOT NULL)
    EXECUTE FUNCTION fill_quota_row();
DROP TRIGGER count_insert ON usage_events;
DROP TRIGGER count_update ON usage_events;
DROP TRIGGER count_delete ON usage_events;
DROP TRIGGER fill ON usage_events;
DROP FUNCTION count_reservations();
DROP FUNCTION count_usage_events();
DROP FUNCTION require_meters(text[]);
