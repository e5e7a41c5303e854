-- Each grant against its draws, and all grants of a user and meter against its reservations and usage.
(
    SELECT format('grant %s of user %s, %s: %s given; reserved %s, drawn %s; used %s, charged %s',
                  g.id, g.user_id, g.event_type, g.amount, g.reserved, coalesce(d.open, 0), g.used, coalesce(d.charged, 0))
    FROM grants g
    LEFT JOIN (
        SELECT grant_id, sum(amount) FILTER (WHERE charged IS NULL) AS open, sum(charged) AS charged
        FROM grant_draws GROUP BY 1
    ) d ON d.grant_id = g.id
    WHERE g.reserved <> coalesce(d.open, 0) OR g.used <> coalesce(d.charged, 0) OR g.reserved::numeric + g.used > g.amount
    UNION ALL
    SELECT format('user %s, %s: reservations have %s from grants, which have %s; usage has %s, grants %s', user_id, event_type,
                  coalesce(r.amount, 0), coalesce(g.reserved, 0), coalesce(u.amount, 0), coalesce(g.used, 0))
    FROM (SELECT user_id, event_type, sum(reserved) AS reserved, sum(used) AS used FROM grants GROUP BY 1, 2) g
    FULL JOIN (
        SELECT user_id, event_type, sum(from_grants) AS amount FROM quota_reservations WHERE from_grants <> 0 GROUP BY 1, 2
    ) r USING (user_id, event_type)
    FULL JOIN (
        SELECT user_id, event_type, sum(from_grants) AS amount FROM usage_events WHERE from_grants <> 0 GROUP BY 1, 2
    ) u USING (user_id, event_type)
    WHERE coalesce(r.amount, 0) <> coalesce(g.reserved, 0) OR coalesce(u.amount, 0) <> coalesce(g.used, 0)
    UNION ALL
    SELECT format('grant %s of user %s, %s has %s left, but holders.has_grants is false', g.id, g.user_id, g.event_type,
                  g.amount - g.reserved - g.used)
    FROM grants g JOIN holders h ON h.user_id = g.user_id AND h.event_type = g.event_type
    WHERE NOT h.has_grants AND g.reserved::numeric + g.used < g.amount AND (g.expires_at > now()) IS NOT FALSE
)
LIMIT $1
