-- The name of a notification channel. River's clients listen on channels that are named after the schema of River's
-- tables. `weir migrate` puts that schema's name in place of {river_schema}, so that no notification looks it up.
-- Callers: wake_queue.
CREATE OR REPLACE FUNCTION river_channel(topic text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT '{river_schema}.' || topic
$$;
