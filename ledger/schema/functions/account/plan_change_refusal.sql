-- Why an event of a payment provider is not applied: `older` than another one that counts, or the end of a `superseded`
-- subscription. Null: it is applied.
--
-- - The end of a subscription is an event with the default plan.
-- - An event is older if a later event was applied, or if a later event of its subscription is known. The end of
--   another subscription does not count.
-- - Within the same time, the end of a subscription is its last event.
-- - of_subscription: the provider's id; null when the event names none.
--
-- Cost: the user's plan changes.
-- Callers: ledger/src/control/plan.rs, ledger/src/control/sql/import_subscriptions.sql.
CREATE OR REPLACE FUNCTION plan_change_refusal(of_user uuid, new_plan text, at timestamptz, of_subscription text) RETURNS text
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    WITH changes AS (
        SELECT c.subscription, c.occurred_at, c.recorded_at, c.applied, c.plan = d.tier AS is_end, new_plan = d.tier AS ends_now
        FROM plan_changes c
        JOIN subscription_plans d ON d.is_default
        WHERE c.user_id = of_user
    ), latest AS (
        SELECT * FROM changes WHERE applied ORDER BY recorded_at DESC LIMIT 1
    )
    SELECT CASE
        WHEN EXISTS (
            SELECT FROM changes c
            WHERE (c.occurred_at > at AND (c.applied AND NOT coalesce(c.is_end AND c.subscription <> of_subscription, false)
                                           OR coalesce(c.subscription = of_subscription, false)))
               OR (c.occurred_at = at AND c.subscription = of_subscription AND c.is_end AND NOT c.ends_now)
        ) THEN 'older'
        WHEN EXISTS (SELECT FROM latest l WHERE l.ends_now AND l.subscription <> of_subscription) THEN 'superseded'
    END
$$;
