-- Trigger of subscription_plans: gives a new plan limits for every meter, and copies a changed ..._monthly_limit to
-- plan_limits.
-- Cost: one write a meter.
CREATE OR REPLACE FUNCTION follow_monthly_limits() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    new_plan jsonb := to_jsonb(NEW);
    old_plan jsonb := CASE WHEN TG_OP = 'UPDATE' THEN to_jsonb(OLD) ELSE '{}' END;
BEGIN
    INSERT INTO plan_limits (plan_id, event_type, month, slots)
    SELECT NEW.id, m.name, (new_plan ->> (m.name || '_monthly_limit'))::bigint,
           coalesce((SELECT l.slots FROM plan_limits l JOIN subscription_plans p ON p.id = l.plan_id
                     WHERE p.is_default AND l.event_type = m.name), 1)
    FROM meters m
    ON CONFLICT DO NOTHING;
    UPDATE plan_limits l
    SET month = (new_plan ->> (l.event_type || '_monthly_limit'))::bigint
    WHERE l.plan_id = NEW.id
      AND new_plan -> (l.event_type || '_monthly_limit') IS DISTINCT FROM old_plan -> (l.event_type || '_monthly_limit');
    RETURN NULL;
END
$$;
