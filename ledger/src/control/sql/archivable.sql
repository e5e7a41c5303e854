-- At most a thousand users and meters with a billing period that ended by a time, in order. `events` counts the events
-- that may be archived, up to a limit.
-- Parameters: $1 the time, $2 and $3 the user and the meter after which to continue, $4 the limit, $5 the reason that
-- marks sums. Ranges of primary keys, and of an index for each row.
SELECT a.user_id, a.event_type, n.events
FROM (
    (SELECT DISTINCT user_id, event_type
     FROM window_balances
     WHERE (user_id, event_type::text) > ($2, $3) AND user_id >= $2
       AND span = 'month' AND period_start + interval '1 month' <= $1
     ORDER BY user_id, event_type
     LIMIT 1000)
    UNION
    (SELECT user_id, event_type
     FROM holders
     WHERE (holder, event_type::text) > ($2, $3) AND holder >= $2 AND user_id IS NOT NULL
       AND period_start + interval '1 month' <= $1
     ORDER BY holder, event_type
     LIMIT 1000)
    ORDER BY user_id, event_type
    LIMIT 1000
) a
CROSS JOIN LATERAL (
    SELECT count(*) AS events
    FROM (
        SELECT FROM usage_events e
        WHERE e.user_id = a.user_id AND e.event_type = a.event_type AND e.created_at < $1
          AND NOT (e.xid IS NULL AND e.job_id IS NULL AND e.reason IS NOT DISTINCT FROM $5)
        LIMIT $4
    ) e
) n
ORDER BY a.user_id, a.event_type
