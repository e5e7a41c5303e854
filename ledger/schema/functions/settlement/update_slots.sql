-- Counts slots that were freed and given. The caller holds the account's lock. Callers: promote_parked, weir_complete.
CREATE OR REPLACE FUNCTION update_slots(of_holder uuid, meter text, freed int, unparked int, given bigint[], in_force int)
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF given <> '{}' THEN
        UPDATE quota_reservations r SET admitted_at = clock_timestamp(), parked_at = NULL WHERE r.job_id = ANY (given);
    END IF;
    IF freed <> 0 OR unparked <> 0 OR given <> '{}' THEN
        UPDATE holders k
        SET slots_in_use = k.slots_in_use - freed + cardinality(given),
            parked = k.parked - unparked - cardinality(given),
            granted_slots = CASE WHEN given <> '{}' THEN in_force ELSE k.granted_slots END
        WHERE k.holder = of_holder AND k.event_type = meter;
    END IF;
END
$$;
