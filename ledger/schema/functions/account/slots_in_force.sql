-- The slot limit of a holder by the settings that Weir's processes wrote last; 2147483647 is unlimited. PL/pgSQL, so
-- that its query is planned once per session.
-- Cost: one row.
-- Callers: accounts_of, settle_many, admit_late; ledger/src/settlement/sql/waiting.sql, ledger/src/read/sql/holder_slots.sql,
-- ledger/src/audit/sql/i2_slots.sql and i5_waiting.sql.
CREATE OR REPLACE FUNCTION slots_in_force(of_user uuid, plan text, slots_of_plan int, own_slots int) RETURNS int
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    s weir_settings;
BEGIN
    SELECT * INTO s FROM weir_settings;
    RETURN CASE WHEN NOT s.counts_slots THEN 2147483647
                ELSE slot_limit(CASE WHEN of_user IS NOT NULL THEN plan END, own_slots,
                                (s.slots_of_plans ->> plan)::bigint, slots_of_plan, s.anonymous_slots)::int END;
END
$$;
