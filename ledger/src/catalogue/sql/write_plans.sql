-- $1 names, $2 lanes, $3 days that results are kept, $4 the default one, $5 how many jobs may wait.
INSERT INTO subscription_plans AS p (tier, lane, retention_days, is_default, max_waiting)
SELECT w.tier, w.lane, w.days, w.tier = $4::text, w.waiting
FROM unnest($1::text[], $2::text[], $3::int[], $5::int[]) AS w (tier, lane, days, waiting)
ON CONFLICT (tier) DO UPDATE
    SET lane = excluded.lane, retention_days = excluded.retention_days, is_default = excluded.is_default,
        max_waiting = excluded.max_waiting
