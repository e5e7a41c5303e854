-- Wakes the workers of a queue, unless more than 20 jobs have been waiting there for 100 ms: then the workers are busy
-- and fetch anyway. Jobs of a kind that no service has do not count.
CREATE OR REPLACE FUNCTION wake_queue(queue text) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM (
            SELECT j.kind FROM river_job j
            WHERE j.state = 'available' AND j.queue = wake_queue.queue AND j.priority = 1
              AND j.scheduled_at < clock_timestamp() - interval '100 milliseconds'
            ORDER BY j.scheduled_at
            LIMIT 100
        ) oldest
        WHERE oldest.kind IN (SELECT s.kind FROM weir_services s)
        OFFSET 20
    ) THEN
        PERFORM pg_notify(river_channel('river_insert'), json_build_object('queue', wake_queue.queue)::text);
    END IF;
END
$$;
