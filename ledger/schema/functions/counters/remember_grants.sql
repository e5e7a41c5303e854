-- Trigger of holders: when a deleted holders row is created again, notes whether its user has grants. Used-up grants do
-- not matter, and the index does not contain them.
-- Cost: one look-up by index.
CREATE OR REPLACE FUNCTION remember_grants() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    NEW.has_grants := EXISTS (
        SELECT FROM grants g WHERE g.user_id = NEW.user_id AND g.event_type = NEW.event_type AND g.used < g.amount);
    RETURN NEW;
END
$$;
