-- Trigger of admin_log: serializes the log's writers, so that ids follow the order of commits. A reader that continues
-- after an id then misses no row.
-- Cost: one row. Waits until the transaction of the log's last writer has ended.
CREATE OR REPLACE FUNCTION serialize_log() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM FROM weir_locks l WHERE l.name = TG_TABLE_NAME FOR NO KEY UPDATE;
    RETURN NULL;
END
$$;
