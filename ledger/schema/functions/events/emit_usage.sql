-- Trigger of holders and window_balances: emits the thresholds that new usage of a month or a day reaches.
-- Cost: a scan of webhooks; as emit_thresholds() with a subscriber.
CREATE OR REPLACE FUNCTION emit_usage() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
BEGIN
    -- check_threshold_subscribers() does not run before inserts.
    IF TG_OP = 'UPDATE' OR EXISTS (SELECT FROM subscribed_webhooks w WHERE w.has_thresholds) THEN
        PERFORM emit_thresholds(NEW.user_id, NEW.event_type);
    END IF;
    RETURN NULL;
END
$$;
