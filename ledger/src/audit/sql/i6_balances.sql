-- Ignores windows shorter than a month some time after their end: see short_window_lifetime().
SELECT format('user %s, %s, %s of %s: used %s, sum %s; reserved %s, sum %s; from grants %s, sum %s', user_id, event_type, span, period_start,
              coalesce(b.used, 0), coalesce(u.used, 0), coalesce(b.reserved, 0), coalesce(r.reserved, 0),
              coalesce(b.from_grants, 0), coalesce(u.from_grants, 0) + coalesce(r.from_grants, 0)),
       user_id AS holder
FROM quota_balances b
FULL JOIN (
    SELECT user_id, event_type, span, period_start, sum(amount) AS used, sum(from_grants) AS from_grants FROM charged_amounts GROUP BY 1, 2, 3, 4
) u USING (user_id, event_type, span, period_start)
FULL JOIN (
    SELECT user_id, event_type, span, period_start, sum(amount) AS reserved, sum(from_grants) AS from_grants FROM reserved_amounts GROUP BY 1, 2, 3, 4
) r USING (user_id, event_type, span, period_start)
WHERE (coalesce(b.used, 0) <> coalesce(u.used, 0) OR coalesce(b.reserved, 0) <> coalesce(r.reserved, 0)
       OR coalesce(b.from_grants, 0) <> coalesce(u.from_grants, 0) + coalesce(r.from_grants, 0))
  AND (span = 'month' OR period_start > now() - (short_window_lifetime() - interval '2 days') OR coalesce(r.reserved, 0) <> 0)
LIMIT $1
