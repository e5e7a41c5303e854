-- Returns the version of Weir's schema, and the channel of its notifications. A worker calls it at its start, and refuses
-- to work if the database or the worker's client has to be upgraded first.
--
-- | column | |
-- |---|---|
-- | `upgrade` | the number of the last applied upgrade. If a client needs a higher one, run `weir migrate` |
-- | `oldest_client` | the lowest number that a client may need. If a client needs a lower one, upgrade the client |
-- | `channel` | the channel to listen on. It notifies of new jobs |
--
-- Errors: none. A database without this function is older than all clients that call it.
--
-- Cost: one row of weir_schema.
-- Callers: other languages, as either role. The clients in clients/ each have a constant with the upgrade that they need.
-- Raise `oldest_client` when a function changes so that older clients fail.
CREATE OR REPLACE FUNCTION weir_version(OUT upgrade int, OUT oldest_client int, OUT channel text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
    SELECT s.upgrade, 19, river_channel('river_insert') FROM weir_schema s
$$;

COMMENT ON FUNCTION weir_version IS
    'the last applied upgrade of the schema, the lowest one that a client may need, and the channel of notifications';
