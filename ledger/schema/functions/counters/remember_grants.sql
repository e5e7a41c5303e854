-- Trigger: a holders row that was deleted and is created again remembers whether its user has grants. Used-up grants
-- need not be found, and the index does not contain them.
-- Cost: one look-up by index.
CREATE OR REPLACE FUNCTION remember_grants() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    -- Of one that is used up, nothing is left to be looked for; and the index has none of them.
    NEW.has_grants := EXISTS (
        SELECT FROM grants g WHERE g.user_id = NEW.user_id AND g.event_type = NEW.event_type AND g.used < g.amount);
    RETURN NEW;
END
$$;
