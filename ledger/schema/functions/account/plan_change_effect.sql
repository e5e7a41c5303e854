-- The effect of an event of a payment provider. Called before the event is stored in plan_changes.
--
-- The plan comes from the newest event of a live subscription. Events without a subscription count as one subscription.
-- - An event with the default plan is the end of its subscription. Within the same time, it is the last event. Without a
--   subscription, it ends all earlier ones.
-- - After the end of a subscription, the plan comes from the newest other live one, or is the default plan.
-- - An event without a subscription counts until the next event of any subscription.
-- - A scheduled change keeps its time: until then, its subscription has its earlier plan, and an end has not happened.
--
-- Parameters: new_anchor: the anchor of the billing periods that the event asks for, or null.
-- Result: refusal: why the event changes nothing: `older` than another one that counts, or the end of a `superseded`
-- subscription; null if it is applied. plan, anchor: in force after it; a null anchor leaves the periods unchanged.
-- next_plan, next_at: the scheduled change of the other subscription that the plan comes from.
--
-- Cost: the user's plan changes.
-- Callers: ledger/src/control/plan.rs, ledger/src/control/sql/import_subscriptions.sql.
CREATE OR REPLACE FUNCTION plan_change_effect(
    of_user uuid, new_plan text, at timestamptz, of_subscription text, new_anchor timestamptz
) RETURNS TABLE (refusal text, plan text, anchor timestamptz, next_plan text, next_at timestamptz)
LANGUAGE sql STABLE ROWS 1
SET search_path FROM CURRENT
AS $$
    WITH events AS (
        -- due_at: when a scheduled change takes effect, while that is in the future.
        SELECT c.subscription, c.plan, c.occurred_at, c.recorded_at,
               CASE WHEN due.at IS NULL THEN c.anchor ELSE paid.anchor END AS anchor,
               c.plan = d.tier AS is_end, false AS is_new, due.at AS due_at
        FROM plan_changes c
        JOIN subscription_plans d ON d.is_default
        CROSS JOIN LATERAL subscription_of(of_user, now()) s
        LEFT JOIN LATERAL (
            SELECT a.anchor
            FROM plan_changes a
            WHERE a.user_id = of_user AND a.subscription IS NOT DISTINCT FROM c.subscription AND a.anchor IS NOT NULL
              AND a.occurred_at <= c.occurred_at
            ORDER BY a.occurred_at DESC LIMIT 1
        ) paid ON c.effective = 'period_end'
        LEFT JOIN LATERAL (
            SELECT b.period_end AS at FROM billing_period(coalesce(paid.anchor, s.anchor), c.recorded_at) b
            WHERE b.period_end > now()
        ) due ON c.effective = 'period_end'
        WHERE c.user_id = of_user
        UNION ALL
        SELECT of_subscription, new_plan, at, 'infinity', new_anchor, new_plan = d.tier, true, NULL
        FROM subscription_plans d
        WHERE d.is_default
    ), known AS (
        -- The events before this one, and those with it.
        SELECT k.with_new, e.* FROM (VALUES (false), (true)) k (with_new) JOIN events e ON k.with_new OR NOT e.is_new
    ), latest AS (
        SELECT DISTINCT ON (k.with_new, k.subscription) k.*
        FROM known k
        ORDER BY k.with_new, k.subscription, k.occurred_at DESC, k.is_end AND k.subscription IS NOT NULL DESC,
                 k.recorded_at DESC
    ), winners AS (
        SELECT DISTINCT ON (l.with_new) l.*
        FROM latest l
        -- A plan that was removed from the catalogue cannot be assigned.
        JOIN subscription_plans p ON p.tier = l.plan
        -- A scheduled end does not make its subscription the newest.
        CROSS JOIN LATERAL (
            SELECT max(k.occurred_at) AS at FROM known k
            WHERE k.with_new = l.with_new AND k.subscription IS NOT DISTINCT FROM l.subscription
              AND (k.due_at IS NULL OR NOT l.is_end)
        ) last
        WHERE (l.subscription IS NULL OR NOT l.is_end OR l.due_at IS NOT NULL)
          AND NOT EXISTS (
              SELECT FROM known k
              WHERE k.with_new = l.with_new AND (k.occurred_at, k.recorded_at) > (l.occurred_at, l.recorded_at)
                AND CASE WHEN l.subscription IS NULL THEN k.subscription IS NOT NULL
                         ELSE k.subscription IS NULL AND k.is_end AND k.due_at IS NULL END)
        ORDER BY l.with_new, coalesce(last.at, l.occurred_at) DESC, l.recorded_at DESC
    )
    SELECT CASE
               WHEN w.is_new THEN NULL
               WHEN NOT (own.is_new AND own.is_end) THEN 'older'
               WHEN w.with_new IS NULL OR w.subscription IS DISTINCT FROM before.subscription THEN NULL
               WHEN w.subscription IS NULL THEN 'older'
               ELSE 'superseded'
           END,
           coalesce(CASE WHEN w.due_at IS NULL THEN w.plan ELSE prior.plan END, d.tier),
           CASE WHEN w.with_new THEN w.anchor ELSE new_anchor END,
           CASE WHEN w.due_at IS NOT NULL THEN w.plan END,
           w.due_at
    FROM subscription_plans d
    JOIN latest own ON own.with_new AND own.subscription IS NOT DISTINCT FROM of_subscription
    LEFT JOIN winners w ON w.with_new
    LEFT JOIN winners before ON NOT before.with_new
    LEFT JOIN LATERAL (
        SELECT k.plan
        FROM known k
        JOIN subscription_plans p ON p.tier = k.plan
        WHERE k.with_new AND k.subscription IS NOT DISTINCT FROM w.subscription AND k.due_at IS NULL
        ORDER BY k.occurred_at DESC, k.recorded_at DESC LIMIT 1
    ) prior ON true
    WHERE d.is_default
$$;
