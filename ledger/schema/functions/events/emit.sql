-- Emits events to all webhooks that subscribe to their types. An event has the same id for every webhook. percents: the
-- thresholds of quota.threshold events; each webhook chooses its own.
-- Cost: a scan of webhooks, a small table; then as deliver().
-- Callers: the functions of this folder.
CREATE OR REPLACE FUNCTION emit(types text[], of_holders uuid[], details jsonb[], percents smallint[] DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    subscribed record;
BEGIN
    WITH events AS MATERIALIZED (
        SELECT e.type, e.holder, e.percent,
               jsonb_build_object('id', 'evt_' || replace(gen_random_uuid()::text, '-', ''), 'type', e.type,
                                  'timestamp', utc_text(clock_timestamp()), 'data', e.data) AS event
        FROM unnest(types, of_holders, details, percents) AS e (type, holder, data, percent)
    )
    SELECT array_agg(w.id) AS webhooks, array_agg(e.holder) AS holders, array_agg(e.event ->> 'id') AS ids,
           array_agg(e.event::text) AS bodies
    INTO subscribed
    FROM events e
    JOIN subscribed_webhooks w ON e.type = ANY (w.events)
        AND (e.percent IS NULL OR e.percent = ANY (w.thresholds));
    IF subscribed.webhooks IS NOT NULL THEN
        PERFORM deliver(subscribed.webhooks, subscribed.holders, subscribed.ids, subscribed.bodies);
    END IF;
END
$$;
