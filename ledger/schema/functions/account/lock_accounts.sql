-- Locks accounts in the common order, and returns them. With skips_locked, leaves out those that another transaction has
-- locked; otherwise it waits. Does not return accounts without a row.
--
-- The order and the limit find the live version of a row (see ledger/schema/tables/holders.sql).
-- Cost: one look-up by key and one lock an account.
-- Callers: submit_many, admit_late, lend_jobs, retry_job, weir_settle_many, weir_charge; ledger/src/settlement/statements.rs.
CREATE OR REPLACE FUNCTION lock_accounts(of_holders uuid[], meters usage_event_type[], skips_locked boolean) RETURNS SETOF holders
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF skips_locked THEN
        RETURN QUERY
        SELECT h.*
        FROM (SELECT DISTINCT u.holder, u.meter FROM unnest(of_holders, meters) AS u (holder, meter) ORDER BY 1, 2) w
        CROSS JOIN LATERAL (
            SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.meter
            ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
        ) h;
    ELSE
        RETURN QUERY
        SELECT h.*
        FROM (SELECT DISTINCT u.holder, u.meter FROM unnest(of_holders, meters) AS u (holder, meter) ORDER BY 1, 2) w
        CROSS JOIN LATERAL (
            SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.meter
            ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE
        ) h;
    END IF;
END
$$;
