-- Trigger of plan_limits: copies a changed plan_limits.month to the plan's ..._monthly_limit immediately. If the column
-- lagged behind, setting it to its old value would have no effect.
-- Cost: one look-up in the system catalogue, one write.
CREATE OR REPLACE FUNCTION write_monthly_limit() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    written text := NEW.event_type || '_monthly_limit';
BEGIN
    IF EXISTS (SELECT 1 FROM pg_attribute
               WHERE attrelid = 'subscription_plans'::regclass AND attname = written AND NOT attisdropped) THEN
        EXECUTE format('UPDATE subscription_plans SET %1$I = $1 WHERE id = $2 AND %1$I IS DISTINCT FROM $1', written)
            USING NEW.month, NEW.plan_id;
    END IF;
    RETURN NULL;
END
$$;
