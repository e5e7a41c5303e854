-- The outcome that a submission of this amount would have now, and the current quota. Takes no lock and writes nothing,
-- so another submission may take the room in between. It does not look for repeated keys or equal jobs. The quota is
-- null for a client address (of_user is null). An unknown user has the default plan.
-- Cost: that of account_of(); one look-up by key.
-- Callers: weir_quota; ledger/src/read/check.rs.
CREATE OR REPLACE FUNCTION check_submission(of_holder uuid, of_user uuid, meter text, added bigint,
                                            OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET jit = off
AS $$
DECLARE
    account record;
    room record;
BEGIN
    SELECT coalesce(h.slots_in_use, 0) AS slots_in_use, coalesce(h.parked, 0) AS parked, a.*,
           slots_in_force(of_user, a.tier, coalesce(a.slots, CASE WHEN of_user IS NOT NULL THEN raise_no_limits(meter) END),
                          a.own_slots) AS slots_now
    INTO account
    FROM (SELECT clock_timestamp() AS at OFFSET 0) clock
    LEFT JOIN LATERAL (SELECT * FROM holders k WHERE k.holder = of_holder AND k.event_type = meter
                       ORDER BY k.generation DESC LIMIT 1) h ON true
    LEFT JOIN LATERAL account_of(of_user, meter, coalesce(h.has_grants, true), clock.at) a ON true;
    SELECT * INTO room
    FROM room_for(added, account.spans, account.limits, account.ceilings, account.used_in, account.reserved_in, account.ends,
                  account.from_grants, account.granted);
    outcome := submission_outcome(of_holder, meter, false, account.slots_in_use, account.slots_now, account.parked,
                                  account.attributes, room.full_windows, room.is_too_large);
    IF of_user IS NOT NULL THEN
        quota := quota_json(account.used, account.reserved, account.monthly_limit, account.period_end, account.from_grants,
                            account.granted, account.monthly_ceiling);
    END IF;
    IF outcome = 'over_quota' THEN
        quota := quota || jsonb_build_object('windows', room.full_windows);
    END IF;
END
$$;
