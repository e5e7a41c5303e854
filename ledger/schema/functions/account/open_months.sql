-- Turns the months of accounts' rows: moves the month that a row counts to window_balances, and takes the one that starts
-- at this time from there. Null takes none. The caller holds the accounts' locks.
-- Parameters: accounts and starts, pairwise.
-- Cost: two look-ups and up to three writes an account.
-- Callers: close_months, submit_many.
CREATE OR REPLACE FUNCTION open_months(of_holders uuid[], meters text[], starts timestamptz[]) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
AS $$
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT w.start, h.*
        FROM unnest(of_holders, meters, starts) AS w (holder, meter, start)
        -- The order and the limit find the live version of a row (see ledger/schema/tables/holders.sql).
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place, k.* FROM holders k WHERE k.holder = w.holder AND k.event_type = w.meter
            ORDER BY k.generation DESC LIMIT 1
        ) h
        WHERE h.period_start IS DISTINCT FROM w.start
    ), closed AS (
        INSERT INTO window_balances (user_id, event_type, span, period_start, used, reserved, granted_limit, from_grants)
        SELECT w.user_id, w.event_type, 'month', w.period_start, w.used, w.reserved, w.granted_limit, w.from_grants
        FROM wanted w WHERE w.period_start IS NOT NULL
    ), opened AS (
        DELETE FROM window_balances b USING wanted w
        WHERE b.user_id = w.user_id AND b.event_type = w.event_type AND b.span = 'month' AND b.period_start = w.start
        RETURNING w.place, b.used, b.reserved, b.granted_limit, b.from_grants
    )
    UPDATE holders h
    SET period_start = w.start, used = coalesce(o.used, 0), reserved = coalesce(o.reserved, 0),
        granted_limit = coalesce(o.granted_limit, 0), from_grants = coalesce(o.from_grants, 0), changes = h.changes + 1
    FROM wanted w
    LEFT JOIN opened o ON o.place = w.place
    WHERE h.ctid = w.place;
END
$$;
