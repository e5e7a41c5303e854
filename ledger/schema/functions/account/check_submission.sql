-- The outcome that a submission of this amount would have now, and the current quota. Takes no lock and writes nothing,
-- so another submission may take the room in between. It does not look for repeated keys or equal jobs. The quota is
-- null for a client address (of_user is null). An unknown user has the default plan.
-- Cost: as submit_many() without its writes.
-- Callers: weir_quota; ledger/src/read/check.rs.
CREATE OR REPLACE FUNCTION check_submission(of_holder uuid, of_user uuid, meter text, added bigint,
                                            OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET jit = off
AS $$
DECLARE
    r record;
BEGIN
    SELECT m.* INTO r
    FROM submit_many(
        ARRAY[ROW(of_holder, of_user, NULL, '', meter, '', 1, '{}', '{}', 1, added, NULL, NULL, NULL, NULL, NULL)::submission],
        'none', false) m;
    outcome := r.outcome;
    -- Nothing is reserved.
    quota := quota_of_submission(r.outcome, 0, 0, r.full_spans, r.spans, r.ends, r.limits, r.ceilings, r.used_in,
                                 r.reserved_in, r.from_grants, r.granted);
END
$$;
