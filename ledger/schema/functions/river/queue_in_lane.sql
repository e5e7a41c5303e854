-- The queue of a promoted job. Only queues of Weir's lanes change: another client may have a queue x_default.
-- Cost: a scan of weir_services, which has one row a service.
-- Callers: settle_many.
CREATE OR REPLACE FUNCTION queue_in_lane(queue text, lane text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    service text;
BEGIN
    SELECT s.name INTO service FROM weir_services s
    WHERE queue_in_lane.queue IN (s.name || '_priority', s.name || '_default');
    RETURN coalesce(service || '_' || lane, queue);
END
$$;
