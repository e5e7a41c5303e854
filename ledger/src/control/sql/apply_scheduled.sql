-- Writes due changes of plan, at most a thousand, and schedules the ones after them. One index range that is mostly empty.
WITH due AS (
    SELECT s.id, s.user_id, p.tier AS before, n.tier AS after, s.next_plan_at
    FROM user_subscriptions s
    JOIN subscription_plans p ON p.id = s.plan_id
    JOIN subscription_plans n ON n.id = s.next_plan_id
    WHERE s.next_plan_at <= now()
    ORDER BY s.next_plan_at
    LIMIT 1000
    FOR NO KEY UPDATE OF s SKIP LOCKED
), done AS (
    UPDATE user_subscriptions s
    SET plan_id = s.next_plan_id, next_plan_id = n.id, next_plan_at = CASE WHEN n.id IS NOT NULL THEN e.next_at END
    FROM due d
    CROSS JOIN LATERAL plan_change_effect(d.user_id, NULL, NULL, NULL, NULL, NULL) e
    LEFT JOIN subscription_plans n ON n.tier = e.next_plan AND n.tier <> d.after
    WHERE s.id = d.id
)
INSERT INTO admin_log (actor, action, holder, before, after)
SELECT 'weir', 'plan.due', user_id, jsonb_build_object('plan', before),
       jsonb_build_object('plan', after, 'since', next_plan_at)
FROM due
