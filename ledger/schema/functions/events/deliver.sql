-- Inserts one job per event and webhook. A delivery has ten attempts over three days. The body is stored as the signed
-- text. As JSON, River's GIN index would index each member, again at every change of state. Maintenance notifies the
-- workers (await_unclaimed).
-- Cost: one job a webhook and event.
-- Callers: emit, emit_job_ends; ledger/src/control/deliveries.rs.
CREATE OR REPLACE FUNCTION deliver(receivers uuid[], of_holders uuid[], ids text[], bodies text[])
RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    INSERT INTO river_job (args, kind, max_attempts, metadata, priority, queue, state, scheduled_at, tags)
    SELECT jsonb_strip_nulls(jsonb_build_object(
               'webhook', d.webhook, 'holder', d.holder, 'event', d.id, 'body', d.body)),
           'weir:webhook', 10, '{}', 1, webhook_queue(d.webhook), 'available', now(), '{}'
    FROM unnest(receivers, of_holders, ids, bodies) AS d (webhook, holder, id, body);
END
$$;
