-- Raises P0001. A plan without limits for a meter is a catalogue error, not an unlimited plan.
-- Cost: none.
-- Callers: accounts_of, admit_late, weir_extend, check_submission; ledger/src/attempts/sql/reserved.sql.
CREATE OR REPLACE FUNCTION raise_no_limits(event_type text) RETURNS int
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RAISE EXCEPTION 'the plan has no limits for the meter %', event_type
        USING HINT = 'run `weir migrate` with the weir.toml that defines the meter';
END
$$;
