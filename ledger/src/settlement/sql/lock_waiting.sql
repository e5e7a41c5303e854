-- These holders under their locks. A holder that is locked right now is being settled and needs nothing.
-- $1 holders, $2 event types, pairwise.
SELECT h.holder, h.event_type, h.user_id, h.slots_in_use, h.parked,
       (SELECT p.tier::text FROM user_subscriptions u JOIN subscription_plans p ON p.id = u.plan_id
        WHERE u.user_id = h.user_id AND u.status = 'active') AS tier
FROM (
    SELECT DISTINCT holder, event_type
    FROM unnest($1::uuid[], $2::usage_event_type[]) AS u (holder, event_type)
    ORDER BY 1, 2
) w
CROSS JOIN LATERAL (
    SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type
    OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED
) h
