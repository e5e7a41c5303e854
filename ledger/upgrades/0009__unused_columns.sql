-- Only triggers have used these columns. plan_limits.month has the limits.
DROP TRIGGER follow_monthly_limits ON subscription_plans;
DROP TRIGGER write_monthly_limit ON plan_limits;
DROP FUNCTION follow_monthly_limits();
DROP FUNCTION write_monthly_limit();
ALTER TABLE subscription_plans
    DROP COLUMN analysis_monthly_limit, DROP COLUMN specview_monthly_limit, DROP COLUMN monthly_price;
ALTER TABLE usage_events DROP COLUMN analysis_id, DROP COLUMN document_id;
