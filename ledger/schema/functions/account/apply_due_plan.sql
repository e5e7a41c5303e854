-- Writes a user's due change of plan, schedules the next one, and logs it. After the end of a subscription, the billing
-- periods are those of the subscription that the plan then comes from. Waits for no lock: returns false if another
-- transaction changes the user or one of its accounts, or if nothing is due.
-- Cost: that of plan_change_effect. If the periods move, that of move_usage.
-- Callers: ledger/src/control/plan.rs.
CREATE OR REPLACE FUNCTION apply_due_plan(of_user uuid) RETURNS boolean
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    due record;
    effect record;
    new_anchor timestamptz;
BEGIN
    -- The order of locks of other changes of plan.
    PERFORM FROM users u WHERE u.id = of_user FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT s.id, s.current_period_start AS anchor, s.next_plan_at, p.tier AS before, n.tier AS after, c.passed,
           c.subscription INTO due
    FROM user_subscriptions s
    JOIN subscription_plans p ON p.id = s.plan_id
    JOIN subscription_plans n ON n.id = s.next_plan_id
    LEFT JOIN LATERAL (
        SELECT k.due_at > s.next_plan_at AS passed, k.subscription FROM plan_changes k
        WHERE k.user_id = of_user AND k.due_at <= now()
        ORDER BY k.due_at DESC, k.occurred_at DESC LIMIT 1
    ) c ON true
    WHERE s.user_id = of_user AND s.status = 'active' AND s.next_plan_at <= now();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT e.* INTO effect FROM plan_change_effect(of_user, NULL, NULL, due.subscription, NULL, NULL) e;
    -- Without maintenance, the time of a later change has passed, too.
    IF due.passed THEN
        due.after := effect.plan;
    END IF;
    new_anchor := nullif(effect.anchor, due.anchor);
    IF new_anchor IS NOT NULL AND (SELECT count(*) FROM holders h WHERE h.holder = of_user) <> (
        SELECT count(*) FROM (
            SELECT FROM holders h WHERE h.holder = of_user ORDER BY h.event_type FOR NO KEY UPDATE SKIP LOCKED) l
    ) THEN
        RETURN false;
    END IF;
    UPDATE user_subscriptions s
    SET plan_id = (SELECT p.id FROM subscription_plans p WHERE p.tier = due.after),
        next_plan_id = n.id,
        next_plan_at = CASE WHEN n.id IS NOT NULL THEN effect.next_at END,
        current_period_start = coalesce(new_anchor, s.current_period_start),
        current_period_end = coalesce((SELECT b.period_end FROM billing_period(new_anchor, clock_timestamp()) b),
                                      s.current_period_end)
    FROM (SELECT) one
    LEFT JOIN subscription_plans n ON n.tier = effect.next_plan AND n.tier <> due.after
    WHERE s.id = due.id;
    IF new_anchor IS NOT NULL THEN
        PERFORM move_usage(of_user, period_start_of(of_user, clock_timestamp()));
    END IF;
    INSERT INTO admin_log (actor, action, holder, before, after)
    VALUES ('weir', 'plan.due', of_user, jsonb_build_object('plan', due.before),
            jsonb_build_object('plan', due.after, 'since', due.next_plan_at, 'anchor', new_anchor));
    RETURN true;
END
$$;
