-- Trigger of holders and window_balances: notes once per statement, in weir.thresholds, whether any webhook subscribes to
-- thresholds. The row triggers read it. Most installations have no such webhook, and every settlement updates an account.
-- Cost: a scan of webhooks, a small table.
CREATE OR REPLACE FUNCTION check_threshold_subscribers() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM set_config('weir.thresholds', CASE WHEN EXISTS (
        SELECT FROM subscribed_webhooks w WHERE w.has_thresholds
    ) THEN 'thresholds' ELSE '' END, true);
    RETURN NULL;
END
$$;
