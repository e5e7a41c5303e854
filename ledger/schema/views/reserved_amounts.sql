-- One row per reservation and window that it counts in: the rows that quota_balances.reserved adds up.
CREATE OR REPLACE VIEW reserved_amounts AS
SELECT user_id, event_type, 'month' AS span, period_start, reserved_amount AS amount, from_grants
FROM weir_jobs
WHERE ended_at IS NULL AND user_id IS NOT NULL AND period_start IS NOT NULL
UNION ALL
SELECT r.user_id, r.event_type, w.span, date_trunc(w.span, r.reserved_at, 'UTC'), r.reserved_amount, 0
FROM weir_jobs r
JOIN short_windows() w ON r.windows & w.mask <> 0
WHERE r.ended_at IS NULL AND r.windows <> 0 AND r.user_id IS NOT NULL AND r.period_start IS NOT NULL;

COMMENT ON VIEW reserved_amounts IS
    'The reservations: one row per reservation and window that it counts in.';
