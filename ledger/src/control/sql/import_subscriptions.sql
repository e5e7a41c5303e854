-- Applies the copied subscriptions as events of a payment provider, each once. For one user, set_plan() of
-- ledger/src/control/plan.rs does the same. The paid period may end a microsecond early, as
-- its last moment. An end without whole months does not count. Returns the applied changes.
WITH wanted AS MATERIALIZED (
    SELECT u.holder, u.is_new, p.tier, s.event_id, s.subscription, k.anchor AS known,
           coalesce(paid_anchor(s.current_period_start, s.current_period_end, k.anchor),
                    paid_anchor(s.current_period_start, s.current_period_end + interval '1 microsecond', k.anchor),
                    paid_anchor(s.current_period_start, NULL, k.anchor)) AS anchor,
           CASE WHEN s.updated_at IS NULL THEN now()
                ELSE least(greatest(s.updated_at, '1970-01-01 00:00:00+00'), now()) END AS occurred_at,
           now_plan.tier AS before
    FROM pg_temp.import_subscriptions s
    JOIN pg_temp.import_users u ON u.id = s.user_id AND NOT u.is_deleted
    JOIN pg_temp.import_plans i ON i.id = s.plan_id
    JOIN subscription_plans p ON p.tier = i.tier
    CROSS JOIN LATERAL subscription_of(u.holder, now()) k
    JOIN subscription_plans now_plan ON now_plan.id = k.plan_id
    WHERE s.status = 'active' AND NOT EXISTS (SELECT 1 FROM plan_changes c WHERE c.event_id = s.event_id)
), checked AS MATERIALIZED (
    SELECT w.*, e.refusal, p.id AS new_plan_id, p.tier AS new_tier, e.anchor AS new_anchor,
           n.id AS next_plan_id, CASE WHEN n.id IS NOT NULL THEN e.next_at END AS next_plan_at
    FROM wanted w
    CROSS JOIN LATERAL plan_change_effect(w.holder, w.tier, w.occurred_at, w.subscription, w.anchor, NULL) e
    JOIN subscription_plans p ON p.tier = e.plan
    LEFT JOIN subscription_plans n ON n.tier = e.next_plan
), noted AS (
    INSERT INTO plan_changes (event_id, user_id, plan, occurred_at, effective, applied, reason, subscription, anchor)
    SELECT c.event_id, c.holder, c.tier, c.occurred_at, 'now', c.refusal IS NULL, c.refusal, c.subscription, c.anchor
    FROM checked c
), written AS (
    INSERT INTO user_subscriptions AS s (user_id, plan_id, current_period_start, current_period_end, next_plan_id, next_plan_at)
    SELECT c.holder, c.new_plan_id, coalesce(c.new_anchor, c.known), p.period_end, c.next_plan_id, c.next_plan_at
    FROM checked c
    CROSS JOIN LATERAL billing_period(coalesce(c.new_anchor, c.known), now()) p
    WHERE c.refusal IS NULL
    ORDER BY c.holder
    ON CONFLICT (user_id) WHERE status = 'active' DO UPDATE
        SET plan_id = excluded.plan_id, current_period_start = excluded.current_period_start,
            current_period_end = excluded.current_period_end, next_plan_id = excluded.next_plan_id, next_plan_at = excluded.next_plan_at
), logged AS (
    INSERT INTO pg_temp.import_log (holder, before, after)
    SELECT c.holder, jsonb_build_object('plan', c.before),
           jsonb_build_object('plan', c.new_tier, 'event_id', c.event_id, 'occurred_at', utc_text(c.occurred_at),
                              'subscription', c.subscription, 'anchor', utc_text(coalesce(c.new_anchor, c.known)))
    FROM checked c
    WHERE c.refusal IS NULL
)
SELECT c.holder FROM checked c WHERE c.refusal IS NULL AND NOT c.is_new AND c.new_anchor <> c.known ORDER BY c.holder
