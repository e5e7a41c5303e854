-- Locks all accounts of these holders, in order. Every writer of reservations or usage events takes these locks before
-- it touches a balance. So all writers use one order, and one row shows who is blocked.
-- Cost: one index range a holder. Waits for the locks.
-- Callers: changes of ledger/src/control/; repairs in ledger/src/settlement/.
CREATE OR REPLACE FUNCTION lock_holders(of_holders uuid[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM 1 FROM holders h WHERE h.holder = ANY (of_holders) ORDER BY h.holder, h.event_type FOR NO KEY UPDATE;
END
$$;
