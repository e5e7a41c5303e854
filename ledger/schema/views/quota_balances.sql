-- Used and reserved amounts per user, meter and window: the months in the accounts' rows, and all other windows.
CREATE OR REPLACE VIEW quota_balances AS
SELECT user_id, event_type, 'month' AS span, period_start, used, reserved, granted_limit, from_grants
FROM holders
WHERE user_id IS NOT NULL AND period_start IS NOT NULL
UNION ALL
SELECT user_id, event_type, span, period_start, used, reserved, granted_limit, from_grants
FROM window_balances;

COMMENT ON VIEW quota_balances IS
    'Used and reserved amounts per user, meter and window. See window_balances for the columns.';
