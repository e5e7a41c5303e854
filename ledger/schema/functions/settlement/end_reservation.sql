-- Deletes the reservation of an ended job, charges `used` of it, and promotes the holder's next parked jobs. The caller
-- holds the lock of of_holder. Returns the charge.
-- Errors: 40001 as charge_reservation().
-- Cost: as charge_reservation() and pass_on_slots().
-- Callers: weir_complete, fail_attempt.
CREATE OR REPLACE FUNCTION end_reservation(job bigint, of_holder uuid, is_completed boolean, used bigint) RETURNS bigint
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    ended record;
BEGIN
    ended := charge_reservation(job, of_holder, is_completed, used);
    IF ended.meter IS NOT NULL THEN
        PERFORM pass_on_slots(of_holder, ended.meter, ended.freed, ended.unparked);
    END IF;
    RETURN ended.charged;
END
$$;
