-- Frees slots of a holder and gives them to its oldest parked jobs, as far as its plan allows now. Promotes at most
-- 1000 jobs per call, and the next promotion continues: without the bound, lifting a limit would promote all parked
-- jobs at once. The caller holds the account's lock.
-- Cost: five look-ups by key and one write; one index range and two writes a promoted job.
-- Callers: end_reservation, fail_attempt. Rust decides the same in ledger/src/settlement/changes.rs, where MAX_PROMOTED is
-- the same limit.
CREATE OR REPLACE FUNCTION pass_on_slots(of_holder uuid, meter text, freed int, unparked int) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    account holders;
    plan record;
    slots int;
    waiting int;
    n int := 0;
BEGIN
    SELECT * INTO account FROM holders k WHERE k.holder = of_holder AND k.event_type = meter
    ORDER BY k.generation DESC LIMIT 1;
    waiting := account.parked - unparked;
    IF waiting > 0 THEN
        SELECT * INTO plan FROM plan_of(account.user_id, meter, now());
        slots := slots_in_force(account.user_id, plan.tier, plan.slots, plan.own_slots);
        n := least(1000, greatest(least(waiting, slots::bigint - (account.slots_in_use - freed)), 0));
    END IF;
    IF n > 0 THEN
        -- A client address has no plan.
        PERFORM FROM promote_parked(
            ARRAY[of_holder], ARRAY[meter]::usage_event_type[], ARRAY[n],
            ARRAY[CASE WHEN account.user_id IS NULL THEN 'default' ELSE coalesce(plan.lane, 'default') END],
            ARRAY[slots], ARRAY[freed], ARRAY[unparked]);
    ELSIF freed <> 0 OR unparked <> 0 THEN
        UPDATE holders k SET slots_in_use = k.slots_in_use - freed, parked = k.parked - unparked, changes = k.changes + 1
        WHERE k.ctid = (SELECT h.ctid FROM holders h WHERE h.holder = of_holder AND h.event_type = meter
                        ORDER BY h.generation DESC LIMIT 1);
    END IF;
END
$$;
