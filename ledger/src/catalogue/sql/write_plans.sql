-- $1 names, $2 lanes, $3 days that results are kept, $4 the default one.
INSERT INTO subscription_plans AS p (tier, lane, retention_days, is_default)
SELECT w.tier, w.lane, w.days, w.tier = $4::text
FROM unnest($1::text[], $2::text[], $3::int[]) AS w (tier, lane, days)
ON CONFLICT (tier) DO UPDATE
    SET lane = excluded.lane, retention_days = excluded.retention_days, is_default = excluded.is_default
