-- Holders with parked jobs, under their locks. Whoever is locked right now is being settled and needs nothing.
-- The holders are found by jumping from one to the next in the index of the parked reservations, so the cost grows
-- with the number of holders that wait and not with the number of their jobs.
WITH RECURSIVE waiting AS (
    (SELECT r.holder, r.event_type FROM quota_reservations r
     WHERE r.parked_at IS NOT NULL ORDER BY r.holder, r.event_type LIMIT 1)
    UNION ALL
    SELECT n.holder, n.event_type
    FROM waiting w
    CROSS JOIN LATERAL (
        SELECT r.holder, r.event_type FROM quota_reservations r
        WHERE r.parked_at IS NOT NULL AND (r.holder, r.event_type) > (w.holder, w.event_type)
        ORDER BY r.holder, r.event_type LIMIT 1
    ) n
)
SELECT h.holder, h.event_type, h.user_id, h.slots_in_use, h.parked,
       (SELECT p.tier::text FROM user_subscriptions u JOIN subscription_plans p ON p.id = u.plan_id
        WHERE u.user_id = h.user_id AND u.status = 'active') AS tier
FROM waiting w
JOIN holders h ON h.holder = w.holder AND h.event_type = w.event_type
ORDER BY h.holder, h.event_type
FOR NO KEY UPDATE OF h SKIP LOCKED
