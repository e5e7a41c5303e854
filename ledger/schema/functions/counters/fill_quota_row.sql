-- Trigger of quota_reservations and usage_events. Fills in the period, windows and holder of rows that another program
-- inserts without them.
-- Cost: three look-ups by key a row that has no period.
CREATE OR REPLACE FUNCTION fill_quota_row() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NEW.period_start IS NULL AND NEW.user_id IS NOT NULL THEN
        NEW.period_start := period_start_of(NEW.user_id, NEW.created_at);
        NEW.windows := coalesce((SELECT max(l.counted) FROM plan_limits l WHERE l.event_type = NEW.event_type), 0);
    END IF;
    -- Nested, because usage_events does not have the column.
    IF TG_TABLE_NAME = 'quota_reservations' THEN
        NEW.holder := coalesce(NEW.holder, NEW.user_id);
    END IF;
    RETURN NEW;
END
$$;
