-- Reserves an amount in a user's windows. spans, starts, limits, ceilings and used_in are as in account_of(). Creates
-- the missing balances. The caller holds the account's lock, so a row keeps its place (ctid), and no other transaction
-- creates one. The body of this rule for groups is submit_many().
-- Cost: one look-up by key and one write a window.
-- Callers: admit_late, weir_extend.
CREATE OR REPLACE FUNCTION reserve_in_windows(of_user uuid, meter text, amount bigint, spans text[], starts timestamptz[],
                                              limits bigint[], ceilings bigint[], used_in bigint[])
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    UPDATE holders h
    SET reserved = h.reserved + amount,
        -- Usage above a limit that was lowered later stays allowed.
        granted_limit = greatest(coalesce(max_accepted(limits[1], ceilings[1]), 9223372036854775807),
                                 h.used + h.reserved - h.from_grants),
        changes = h.changes + 1
    WHERE h.ctid = (SELECT k.ctid FROM holders k WHERE k.holder = of_user AND k.event_type = meter
                    ORDER BY k.generation DESC LIMIT 1)
      AND h.period_start = starts[1];
    IF FOUND AND cardinality(spans) = 1 THEN
        RETURN;
    END IF;
    WITH wanted AS MATERIALIZED (
        SELECT w.span, w.start, w.used, coalesce(max_accepted(w.most, w.ceiling), 9223372036854775807) AS accepted,
               -- Text parameters have the meter's collation, which the index does not have for spans.
               (SELECT k.ctid FROM window_balances k
                WHERE k.user_id = of_user AND k.event_type = meter AND k.span = w.span COLLATE "default"
                  AND k.period_start = w.start
                ORDER BY k.generation DESC LIMIT 1) AS place
        FROM unnest(spans, starts, limits, ceilings, used_in) AS w (span, start, most, ceiling, used)
        WHERE w.span <> 'month' OR NOT FOUND
    ), updated AS (
        UPDATE window_balances b
        SET reserved = b.reserved + amount,
            granted_limit = greatest(n.accepted, b.used + b.reserved - b.from_grants),
            changes = b.changes + 1
        FROM wanted n
        WHERE b.ctid = n.place
    )
    INSERT INTO window_balances (user_id, event_type, span, period_start, used, reserved, granted_limit)
    SELECT of_user, meter, n.span, n.start, n.used, amount, n.accepted FROM wanted n WHERE n.place IS NULL;
END
$$;
