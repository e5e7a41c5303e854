-- The same locks, as far as nobody else has them. $1 job ids, $2 holders to leave out.
SELECT h.holder, h.event_type, h.user_id, h.slots_in_use, h.parked,
       (SELECT p.tier::text FROM user_subscriptions u JOIN subscription_plans p ON p.id = u.plan_id
        WHERE u.user_id = h.user_id AND u.status = 'active') AS tier
FROM (
    SELECT DISTINCT holder, event_type FROM quota_reservations
    WHERE job_id = ANY ($1::bigint[]) AND holder <> ALL ($2::uuid[])
    ORDER BY 1, 2
) w
CROSS JOIN LATERAL (
    SELECT * FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type
    OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED
) h
