-- Gives the free slots of a holder to its oldest parked jobs, which become available now, at the tail of the lane of
-- its current plan, and counts what was freed for them. The caller holds the account's lock.
-- Callers: end_reservation, weir_fail. Rust: ledger/src/settlement/sql/promote.sql.
CREATE OR REPLACE FUNCTION promote_parked(of_holder uuid, meter text, freed int, unparked int) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    h holders;
    next record;
    woken record;
    given bigint[] := '{}';
    told text[] := '{}';
BEGIN
    SELECT * INTO h FROM holders k WHERE k.holder = of_holder AND k.event_type = meter;
    next := next_parked(of_holder, meter, h.user_id, h.parked - unparked, h.slots_in_use - freed);
    IF next.jobs <> '{}' THEN
        FOR woken IN
            UPDATE river_job j
            SET state = 'available',
                scheduled_at = CASE WHEN j.state = 'pending' THEN greatest(j.scheduled_at, clock_timestamp())
                                    ELSE clock_timestamp() END,
                queue = queue_in_lane(j.queue, next.lane)
            WHERE j.id = ANY (next.jobs) AND (j.state IN ('pending', 'scheduled')) IS TRUE
            RETURNING j.id, j.queue
        LOOP
            given := given || woken.id;
            IF woken.queue <> ALL (told) THEN
                told := told || woken.queue;
                PERFORM wake_queue(woken.queue);
            END IF;
        END LOOP;
    END IF;
    PERFORM update_slots(of_holder, meter, freed, unparked, given, next.slots);
END
$$;
