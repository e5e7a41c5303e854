-- Trigger of user_subscriptions: emits plan.changed when the plan is written: immediately, or within about a second of
-- a scheduled change. It applies the rule of subscription_of() to both rows itself, because subscription_of() cannot
-- see the old row.
-- Cost: a scan of webhooks; with a subscriber as emit_thresholds() for each meter.
CREATE OR REPLACE FUNCTION emit_plan_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
DECLARE
    default_plan uuid;
    before uuid;
    after uuid;
BEGIN
    IF NOT EXISTS (SELECT FROM subscribed_webhooks) THEN
        RETURN NULL;
    END IF;
    SELECT p.id INTO default_plan FROM subscription_plans p WHERE p.is_default;
    before := CASE WHEN TG_OP = 'UPDATE' AND OLD.status = 'active' THEN OLD.plan_id ELSE default_plan END;
    after := CASE WHEN NEW.status = 'active' THEN NEW.plan_id ELSE default_plan END;
    IF before IS NOT DISTINCT FROM after THEN
        RETURN NULL;
    END IF;
    PERFORM emit(ARRAY['plan.changed'], ARRAY[NEW.user_id], ARRAY[jsonb_build_object(
        'subject', subject_of(NEW.user_id), 'holder', NEW.user_id,
        'before', (SELECT p.tier FROM subscription_plans p WHERE p.id = before),
        'plan', (SELECT p.tier FROM subscription_plans p WHERE p.id = after))]);
    PERFORM emit_thresholds(NEW.user_id, b.event_type)
    FROM (SELECT DISTINCT k.event_type FROM quota_balances k WHERE k.user_id = NEW.user_id ORDER BY 1) b;
    RETURN NULL;
END
$$;
