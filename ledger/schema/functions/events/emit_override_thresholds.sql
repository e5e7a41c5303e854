-- Trigger of limit_overrides: an override with a lower limit may reach thresholds immediately.
-- Cost: as emit_thresholds().
CREATE OR REPLACE FUNCTION emit_override_thresholds() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM emit_thresholds(OLD.user_id, OLD.event_type);
    ELSE
        PERFORM emit_thresholds(NEW.user_id, NEW.event_type);
    END IF;
    RETURN NULL;
END
$$;
