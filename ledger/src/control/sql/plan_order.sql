-- Why an event of a payment provider is not applied: `older` than another one that counts, or the end of a `superseded`
-- subscription. Null: it is applied.
--
-- - The end of a subscription is an event with the default plan.
-- - An event is older if a later event was applied, or if a later event of its subscription is known. The end of
--   another subscription does not count.
-- - Within the same time, the end of a subscription is its last event.
--
-- Parameters: $1 user, $2 plan, $3 the event's time, $4 subscription or null.
WITH changes AS (
    SELECT c.subscription, c.occurred_at, c.recorded_at, c.applied, c.plan = d.tier AS is_end, $2 = d.tier AS ends_now
    FROM plan_changes c
    JOIN subscription_plans d ON d.is_default
    WHERE c.user_id = $1
), latest AS (
    SELECT * FROM changes WHERE applied ORDER BY recorded_at DESC LIMIT 1
)
SELECT CASE
    WHEN EXISTS (
        SELECT FROM changes c
        WHERE (c.occurred_at > $3 AND (c.applied AND NOT coalesce(c.is_end AND c.subscription <> $4, false)
                                       OR coalesce(c.subscription = $4, false)))
           OR (c.occurred_at = $3 AND c.subscription = $4 AND c.is_end AND NOT c.ends_now)
    ) THEN 'older'
    WHEN EXISTS (SELECT FROM latest l WHERE l.ends_now AND l.subscription <> $4) THEN 'superseded'
END AS reason
