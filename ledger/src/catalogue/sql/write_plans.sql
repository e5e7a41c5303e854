-- Creates the plans, and updates existing ones. $columns, $parameters and $updates are replaced by lists with an item for
-- each of PLAN_ATTRIBUTES in definition.rs.
-- Parameters: $1 names, $2 lanes, $3 the default one, then the values of each attribute. Writes each plan once.
INSERT INTO subscription_plans (tier, lane, is_default, $columns)
SELECT w.tier, w.lane, w.tier = $3::text, $columns
FROM unnest($1::text[], $2::text[], $parameters) AS w (tier, lane, $columns)
ON CONFLICT (tier) DO UPDATE SET lane = excluded.lane, is_default = excluded.is_default, $updates
