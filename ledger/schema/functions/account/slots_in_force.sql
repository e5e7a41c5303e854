-- The slots of a holder: its override, else the environment's, else the plan's; 2147483647 is unlimited. A client
-- address, and a user whose plan has no limits for the meter, have anonymous_slots. PL/pgSQL, so that its query is
-- planned once a session.
-- Callers: weir_submit, pass_on_slots.
CREATE OR REPLACE FUNCTION slots_in_force(of_user uuid, plan text, slots_of_plan int, own_slots int) RETURNS int
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    s weir_settings;
BEGIN
    SELECT * INTO s FROM weir_settings;
    RETURN CASE WHEN NOT s.counts_slots THEN 2147483647
                -- Who has no plan for the meter has what an address has.
                WHEN of_user IS NULL OR plan IS NULL THEN s.anonymous_slots
                ELSE coalesce(own_slots, (s.slots_of_plans ->> plan)::int, slots_of_plan) END;
END
$$;
