SELECT format('user %s, %s, period of %s: used %s, sum %s; reserved %s, sum %s', user_id, event_type, period_start,
              coalesce(b.used, 0), coalesce(u.used, 0), coalesce(b.reserved, 0), coalesce(r.reserved, 0)),
       user_id AS holder
FROM quota_balances b
FULL JOIN (
    SELECT user_id, event_type, period_start, sum(quota_amount) AS used FROM usage_events GROUP BY 1, 2, 3
) u USING (user_id, event_type, period_start)
FULL JOIN (
    SELECT user_id, event_type, period_start, sum(reserved_amount) AS reserved
    FROM quota_reservations WHERE user_id IS NOT NULL GROUP BY 1, 2, 3
) r USING (user_id, event_type, period_start)
WHERE coalesce(b.used, 0) <> coalesce(u.used, 0) OR coalesce(b.reserved, 0) <> coalesce(r.reserved, 0)
LIMIT $1
