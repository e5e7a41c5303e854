-- Only Weir's functions write reservations and usage events, so no trigger counts or completes the rows of others.
DROP TRIGGER count_insert ON quota_reservations;
DROP TRIGGER count_update ON quota_reservations;
DROP TRIGGER count_delete ON quota_reservations;
DROP TRIGGER fill ON quota_reservations;
DROP TRIGGER count_insert ON usage_events;
DROP TRIGGER count_update ON usage_events;
DROP TRIGGER count_delete ON usage_events;
DROP TRIGGER fill ON usage_events;
DROP FUNCTION count_reservations();
DROP FUNCTION count_usage_events();
DROP FUNCTION fill_quota_row();
DROP FUNCTION require_meters(text[]);
