-- One row per usage event and window that it counts in: the rows that quota_balances.used adds up.
CREATE OR REPLACE VIEW charged_amounts AS
SELECT user_id, event_type, 'month' AS span, period_start, quota_amount AS amount, from_grants
FROM usage_events
UNION ALL
SELECT u.user_id, u.event_type, w.span, date_trunc(w.span, coalesce(u.reserved_at, u.created_at), 'UTC'), u.quota_amount, 0
FROM usage_events u
JOIN short_windows() w ON u.windows & w.mask <> 0
WHERE u.windows <> 0;

COMMENT ON VIEW charged_amounts IS
    'The charges: one row per usage event and window that it counts in.';
