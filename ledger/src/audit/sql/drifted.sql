-- Holders whose counters or balances do not equal their rows.
SELECT DISTINCT holder FROM (
    SELECT holder
    FROM holders h
    FULL JOIN (
        SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked
        FROM quota_reservations GROUP BY 1, 2
    ) r USING (holder, event_type)
    WHERE coalesce(h.slots_in_use, 0) <> coalesce(r.slots, 0) OR coalesce(h.parked, 0) <> coalesce(r.parked, 0)
    UNION ALL
    SELECT user_id
    FROM quota_balances b
    FULL JOIN (
        SELECT user_id, event_type, period_start, sum(quota_amount) AS used FROM usage_events GROUP BY 1, 2, 3
    ) u USING (user_id, event_type, period_start)
    FULL JOIN (
        SELECT user_id, event_type, period_start, sum(reserved_amount) AS reserved
        FROM quota_reservations WHERE user_id IS NOT NULL GROUP BY 1, 2, 3
    ) r USING (user_id, event_type, period_start)
    WHERE coalesce(b.used, 0) <> coalesce(u.used, 0) OR coalesce(b.reserved, 0) <> coalesce(r.reserved, 0)
) d
ORDER BY 1
