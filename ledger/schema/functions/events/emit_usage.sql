-- Trigger of quota_balances: emits the thresholds that new usage reaches.
-- Cost: as emit_thresholds(), only with a subscriber.
CREATE OR REPLACE FUNCTION emit_usage() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NEW.span IN ('month', 'day') AND (TG_OP = 'INSERT' OR NEW.used > OLD.used) THEN
        PERFORM emit_thresholds(NEW.user_id, NEW.event_type);
    END IF;
    RETURN NULL;
END
$$;
