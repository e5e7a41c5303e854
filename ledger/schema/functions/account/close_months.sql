-- Moves the months of these holders' rows to window_balances, so that all their windows are there. The caller holds the
-- holders' locks.
-- Cost: one look-up and two writes an account.
-- Callers: end_reservations_of_users, move_usage, rebuild_accounts; ledger/src/control/deletion.rs.
CREATE OR REPLACE FUNCTION close_months(of_holders uuid[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM open_months(array_agg(h.holder), array_agg(h.event_type::text), array_agg(NULL::timestamptz))
    FROM holders h
    WHERE h.holder = ANY (of_holders) AND h.period_start IS NOT NULL
    HAVING count(*) > 0;
END
$$;
