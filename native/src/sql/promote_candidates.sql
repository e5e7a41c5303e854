-- Holders with parked jobs, under their locks. Whoever is locked right now is being settled and needs nothing.
SELECT h.holder, h.event_type, h.user_id, h.slots_in_use, h.parked,
       (SELECT p.tier::text FROM user_subscriptions u JOIN subscription_plans p ON p.id = u.plan_id
        WHERE u.user_id = h.user_id AND u.status = 'active') AS tier
FROM holders h
WHERE h.parked > 0
ORDER BY h.holder, h.event_type
FOR NO KEY UPDATE OF h SKIP LOCKED
