-- Trigger of admin_log: notes the server's timeline, so that readers notice that it has changed. A default could not call
-- current_timeline(), because tables are created before it.
-- Cost: that of current_timeline().
CREATE OR REPLACE FUNCTION note_log_timeline() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    NEW.timeline := current_timeline();
    RETURN NEW;
END
$$;
