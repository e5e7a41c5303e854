-- The name of a notification channel. River's clients listen on channels named after the schema of River's tables.
-- `weir migrate` replaces {river_schema} with that schema's name, so that notifications need no look-up.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: wake_queue, weir_version.
CREATE OR REPLACE FUNCTION river_channel(topic text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT '{river_schema}.' || topic
$$;
