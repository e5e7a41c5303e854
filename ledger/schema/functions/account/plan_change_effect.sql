-- The effect of an event of a payment provider. Called before the event is stored in plan_changes.
--
-- The plan comes from the newest event of a live subscription. Events without a subscription count as one subscription.
-- - An event with the default plan is the end of its subscription. Within the same time, it is the last event. Without a
--   subscription, it ends all earlier ones.
-- - After the end of a subscription, the plan comes from the newest other live one, or is the default plan.
-- - An event without a subscription counts until the next event of any subscription.
-- - A scheduled event does not count before its time.
--
-- Parameters: new_anchor: the anchor of the billing periods that the event asks for, or null. new_due_at: when a
-- scheduled event takes effect, or null. With a null new_plan, there is no new event.
-- Result: refusal: why the event changes nothing: `older` than another one that counts, or the end of a `superseded`
-- subscription; null if it is applied. plan, anchor: in force after it; a null anchor leaves the periods unchanged.
-- next_plan, next_at: the next scheduled change, or null.
--
-- Cost: the user's plan changes, for each of their scheduled times.
-- Callers: apply_due_plan; ledger/src/control/sql/plan_change_effect.sql and import_subscriptions.sql.
CREATE OR REPLACE FUNCTION plan_change_effect(
    of_user uuid, new_plan text, at timestamptz, of_subscription text, new_anchor timestamptz, new_due_at timestamptz
) RETURNS TABLE (refusal text, plan text, anchor timestamptz, next_plan text, next_at timestamptz)
LANGUAGE sql STABLE ROWS 1
SET search_path FROM CURRENT
AS $$
    WITH events AS (
        SELECT c.subscription, c.plan, c.occurred_at, c.recorded_at, c.plan = d.tier AS is_end, false AS is_new,
               coalesce(c.due_at, '-infinity') AS due_at
        FROM plan_changes c
        JOIN subscription_plans d ON d.is_default
        WHERE c.user_id = of_user
        UNION ALL
        SELECT of_subscription, new_plan, at, 'infinity', new_plan = d.tier, true, coalesce(new_due_at, '-infinity')
        FROM subscription_plans d
        WHERE d.is_default AND new_plan IS NOT NULL
    ), moments AS (
        SELECT now() AS moment UNION SELECT e.due_at FROM events e WHERE e.due_at > now()
    ), known AS (
        -- The events that count at each moment, without this one and with it.
        SELECT m.moment, k.with_new, e.*
        FROM moments m
        CROSS JOIN (VALUES (false), (true)) k (with_new)
        JOIN events e ON e.due_at <= m.moment AND (k.with_new OR NOT e.is_new)
    ), latest AS (
        SELECT DISTINCT ON (k.moment, k.with_new, k.subscription) k.*
        FROM known k
        ORDER BY k.moment, k.with_new, k.subscription, k.occurred_at DESC,
                 k.is_end AND k.subscription IS NOT NULL DESC, k.recorded_at DESC
    ), winners AS (
        SELECT DISTINCT ON (l.moment, l.with_new) l.*
        FROM latest l
        -- A plan that was removed from the catalogue cannot be assigned.
        JOIN subscription_plans p ON p.tier = l.plan
        WHERE (l.subscription IS NULL OR NOT l.is_end)
          AND NOT EXISTS (
              SELECT FROM known k
              WHERE k.moment = l.moment AND k.with_new = l.with_new
                AND (k.occurred_at, k.recorded_at) > (l.occurred_at, l.recorded_at)
                AND CASE WHEN l.subscription IS NULL THEN k.subscription IS NOT NULL
                         ELSE k.subscription IS NULL AND k.is_end END)
        ORDER BY l.moment, l.with_new, l.occurred_at DESC, l.recorded_at DESC
    ), present AS (
        -- A scheduled event leaves the present plan, which may come from no event.
        SELECT CASE WHEN new_due_at > now() THEN c.tier ELSE coalesce(w.plan, d.tier) END AS plan,
               CASE WHEN w.subscription IS DISTINCT FROM of_subscription AND new_due_at IS NULL
                    THEN (SELECT a.anchor FROM plan_changes a
                          WHERE a.user_id = of_user AND a.subscription IS NOT DISTINCT FROM w.subscription
                            AND a.anchor IS NOT NULL
                          ORDER BY a.occurred_at DESC LIMIT 1)
                    ELSE new_anchor END AS anchor
        FROM subscription_plans d
        CROSS JOIN LATERAL subscription_of(of_user, now()) s
        JOIN subscription_plans c ON c.id = s.plan_id
        LEFT JOIN winners w ON w.with_new AND w.moment = now()
        WHERE d.is_default
    )
    SELECT CASE
               WHEN w.is_new THEN NULL
               WHEN NOT (own.is_new AND own.is_end) THEN 'older'
               WHEN w.with_new IS NULL OR w.subscription IS DISTINCT FROM before.subscription THEN NULL
               WHEN w.subscription IS NULL THEN 'older'
               ELSE 'superseded'
           END,
           p.plan, p.anchor, next.plan, next.moment
    FROM present p
    -- Whether the event is applied is decided at its time.
    CROSS JOIN LATERAL (SELECT greatest(new_due_at, now()) AS moment) t
    LEFT JOIN latest own ON own.with_new AND own.moment = t.moment
        AND own.subscription IS NOT DISTINCT FROM of_subscription
    LEFT JOIN winners w ON w.with_new AND w.moment = t.moment
    LEFT JOIN winners before ON NOT before.with_new AND before.moment = t.moment
    LEFT JOIN LATERAL (
        SELECT m.moment, coalesce(k.plan, d.tier) AS plan
        FROM moments m
        JOIN subscription_plans d ON d.is_default
        LEFT JOIN winners k ON k.with_new AND k.moment = m.moment
        WHERE m.moment > now() AND coalesce(k.plan, d.tier) <> p.plan
        ORDER BY m.moment LIMIT 1
    ) next ON true
$$;
