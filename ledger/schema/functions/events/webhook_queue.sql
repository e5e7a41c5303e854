-- The queue of a webhook. Each webhook has its own, so that a slow receiver does not delay others.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: deliver; ledger/src/control/deliveries.rs, ledger/src/control/sql/cancel_deliveries.sql, ledger/src/control/sql/replay.sql,
-- ledger/src/control/sql/replay_undelivered.sql, ledger/src/control/sql/webhooks.sql.
CREATE OR REPLACE FUNCTION webhook_queue(webhook uuid) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT 'weir_webhook_' || replace(webhook::text, '-', '')
$$;
