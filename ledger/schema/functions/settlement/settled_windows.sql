-- The changes of window_balances when jobs end, one row a window.
--
-- - place: the row; null for the month in the account's row.
-- - returned: the amount that returns to grants.
--
-- One SELECT, not STRICT and without SET, so that the planner inlines it.
-- Cost: one look-up a window.
-- Callers: settle_many.
CREATE OR REPLACE FUNCTION settled_windows(s settlement[])
RETURNS TABLE (place tid, reserved bigint, charged bigint, returned bigint)
LANGUAGE sql STABLE AS $$
    SELECT (SELECT k.ctid FROM window_balances k
            WHERE k.user_id = n.user_id AND k.event_type = n.meter AND k.span = n.span
              AND k.period_start = n.period_start
            ORDER BY k.generation DESC LIMIT 1),
           n.reserved, n.charged, n.returned
    FROM (
        SELECT u.user_id, u.meter, w.span, w.period_start, sum(u.reserved)::bigint AS reserved,
               sum(u.charged)::bigint AS charged,
               coalesce(sum(u.from_grants - charged_to_grants(u.reserved, u.overage, u.from_grants, u.charged))
                   FILTER (WHERE w.span = 'month'), 0)::bigint AS returned
        FROM unnest(s) u
        CROSS JOIN LATERAL windows_of(u.period_start, u.windows, u.reserved_at) w
        WHERE u.ends AND u.user_id IS NOT NULL AND u.reserved > 0
        GROUP BY 1, 2, 3, 4
    ) n
$$;
