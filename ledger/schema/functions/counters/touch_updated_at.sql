-- Trigger of user_subscriptions: notes the time of a change of plan by any writer. Maintenance finds the change by this
-- time and promotes parked jobs.
-- Cost: no table.
CREATE OR REPLACE FUNCTION touch_updated_at() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    NEW.updated_at := clock_timestamp();
    RETURN NEW;
END
$$;
