-- Locks these holders, and sets their counters and balances to the sums of their rows. Creates missing accounts of
-- unfinished jobs. Deleted balances of old windows are not created again: see short_window_lifetime().
-- Cost: the holders' unfinished jobs and all their usage events; a write for each account and window.
-- Callers: lock_holder_of_job; ledger/src/audit/mod.rs, ledger/src/control/import.rs,
-- ledger/src/settlement/sql/rebuild.sql.
CREATE OR REPLACE FUNCTION rebuild_accounts(of_holders uuid[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    INSERT INTO holders (holder, event_type, user_id)
    SELECT DISTINCT ON (holder, event_type) holder, event_type, user_id FROM quota_reservations
    WHERE holder = ANY (of_holders)
    ON CONFLICT (holder, event_type) DO NOTHING;
    PERFORM lock_holders(of_holders);
    UPDATE holders h
    SET slots_in_use = c.slots, parked = c.parked, parked_from = 0
    FROM (
        SELECT k.holder, k.event_type, count(r.admitted_at) AS slots, count(r.parked_at) AS parked
        FROM holders k
        LEFT JOIN quota_reservations r ON r.holder = k.holder AND r.event_type = k.event_type
        WHERE k.holder = ANY (of_holders)
        GROUP BY 1, 2
    ) c
    WHERE h.holder = c.holder AND h.event_type = c.event_type;
    PERFORM close_months(of_holders);
    INSERT INTO window_balances AS b (user_id, event_type, span, period_start, used, reserved, from_grants)
    SELECT k.user_id, k.event_type, k.span, k.period_start, coalesce(u.used, 0), coalesce(r.reserved, 0),
           coalesce(u.from_grants, 0) + coalesce(r.from_grants, 0)
    FROM (
        SELECT user_id, event_type, span, period_start FROM window_balances WHERE user_id = ANY (of_holders)
        UNION
        SELECT user_id, event_type, span, period_start FROM charged_amounts
        WHERE user_id = ANY (of_holders)
          AND (span = 'month' OR period_start > now() - (short_window_lifetime() - interval '1 day'))
        UNION
        SELECT user_id, event_type, span, period_start FROM reserved_amounts WHERE user_id = ANY (of_holders)
    ) k
    LEFT JOIN (
        SELECT user_id, event_type, span, period_start, sum(amount) AS used, sum(from_grants) AS from_grants
        FROM charged_amounts WHERE user_id = ANY (of_holders) GROUP BY 1, 2, 3, 4
    ) u USING (user_id, event_type, span, period_start)
    LEFT JOIN (
        SELECT user_id, event_type, span, period_start, sum(amount) AS reserved, sum(from_grants) AS from_grants
        FROM reserved_amounts WHERE user_id = ANY (of_holders) GROUP BY 1, 2, 3, 4
    ) r USING (user_id, event_type, span, period_start)
    ORDER BY 1, 2, 3, 4
    ON CONFLICT (user_id, event_type, span, period_start) DO UPDATE
        SET used = excluded.used, reserved = excluded.reserved, from_grants = excluded.from_grants;
END
$$;
