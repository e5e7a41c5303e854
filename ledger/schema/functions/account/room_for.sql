-- Whether an account has room for an amount, and what pays for it. Grants pay for the part that exceeds the month's
-- limit. The rest of that part is overage. The body of this rule for groups is policy/src/admission.rs
-- (Account) with ledger/src/reservation/decide.rs; native/tests/suite/differential.rs compares the two.
--
-- Parameters: the columns of account_of() with these names, and:
--
-- - added: the requested amount.
-- - full_windows: the windows without room, as the API shows them; null when all have room.
-- - is_too_large: whether a balance would exceed 9223372036854775807.
-- - drawn: the part that grants pay for.
--
-- Cost: no table.
-- Callers: weir_submit, weir_extend, check_submission.
CREATE OR REPLACE FUNCTION room_for(added bigint, spans text[], limits bigint[], ceilings bigint[], used_in bigint[],
                                    reserved_in bigint[], ends timestamptz[], from_grants bigint, granted bigint,
                                    OUT full_windows jsonb, OUT is_too_large boolean, OUT drawn bigint, OUT overage bigint)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    beyond bigint;
BEGIN
    SELECT jsonb_agg(jsonb_build_object('window', w.span)
                     || quota_json(w.used, w.reserved, w.most, w.past, g.paid, g.granted, w.ceiling))
               FILTER (WHERE added > room_in(w.most, w.ceiling, w.used, w.reserved, g.paid, g.granted)),
           added > 0 AND bool_or(w.used::numeric + w.reserved + added > 9223372036854775807)
    INTO full_windows, is_too_large
    FROM unnest(spans, limits, used_in, reserved_in, ends, ceilings) AS w (span, most, used, reserved, past, ceiling)
    CROSS JOIN LATERAL (
        SELECT CASE w.span WHEN 'month' THEN room_for.from_grants ELSE 0 END AS paid,
               CASE w.span WHEN 'month' THEN room_for.granted ELSE 0 END AS granted
    ) g;
    IF full_windows IS NULL AND NOT is_too_large THEN
        beyond := CASE WHEN limits[1] IS NULL THEN 0 ELSE greatest(
            added - greatest(limits[1]::numeric - (used_in[1]::numeric + reserved_in[1] - from_grants), 0), 0) END;
        drawn := least(beyond, granted);
        overage := beyond - drawn;
    END IF;
END
$$;
