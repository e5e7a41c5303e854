-- Gives a user a plan now, and removes a scheduled change.
-- Parameters: $1 user, $2 the plan's id. Looks up the subscription by key. control/sql/set_plan.sql does this for a
-- reported change of plan, and apply_due_plan() for a scheduled one.
INSERT INTO user_subscriptions AS s (user_id, plan_id) VALUES ($1, $2)
ON CONFLICT (user_id) WHERE status = 'active'
    DO UPDATE SET plan_id = excluded.plan_id, next_plan_id = NULL, next_plan_at = NULL, updated_at = now()
    WHERE s.plan_id <> excluded.plan_id OR s.next_plan_at <= now()
