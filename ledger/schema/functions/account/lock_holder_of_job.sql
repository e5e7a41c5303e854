-- Locks the account of a job's reservation and returns it; null without a reservation. A deleted holders row is
-- created again from the holder's rows.
-- Cost: two look-ups by key. Waits for the account's lock.
-- Callers: settle_one, weir_release, weir_extend, fail_attempt; ledger/src/attempts/outstanding.rs.
CREATE OR REPLACE FUNCTION lock_holder_of_job(job bigint, OUT holder uuid, OUT event_type text)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    SELECT h.holder, h.event_type INTO lock_holder_of_job.holder, lock_holder_of_job.event_type
    FROM quota_reservations r
    CROSS JOIN LATERAL (
        SELECT * FROM holders k WHERE k.holder = r.holder AND k.event_type = r.event_type
        ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE
    ) h
    WHERE r.job_id = job;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT r.holder, r.event_type INTO lock_holder_of_job.holder, lock_holder_of_job.event_type
    FROM quota_reservations r WHERE r.job_id = job;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM rebuild_accounts(ARRAY[lock_holder_of_job.holder]);
END
$$;
