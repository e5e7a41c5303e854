-- The queue of a webhook: one each, so that a slow receiver delays no other.
CREATE OR REPLACE FUNCTION webhook_queue(webhook uuid) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT 'weir_webhook_' || replace(webhook::text, '-', '')
$$;
