-- Locks the account of a job's reservation and returns it; null without a reservation. A deleted holders row is
-- created again from its reservations. The settlement of groups does this with create_holder.sql and
-- rebuild_holders.sql of ledger/src/settlement/sql/.
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
    -- The row was deleted. Create it again from its reservations.
    INSERT INTO holders (holder, event_type, user_id, slots_in_use, parked)
    SELECT r.holder, r.event_type, max(r.user_id::text)::uuid, count(r.admitted_at), count(r.parked_at)
    FROM quota_reservations r
    WHERE r.holder = lock_holder_of_job.holder AND r.event_type = lock_holder_of_job.event_type
    GROUP BY 1, 2
    ON CONFLICT DO NOTHING;
    PERFORM 1 FROM holders h
    WHERE h.holder = lock_holder_of_job.holder AND h.event_type = lock_holder_of_job.event_type FOR NO KEY UPDATE;
END
$$;
