-- $1 plans, $2 meters, pairwise; $3 a month, $4 a day, $5 an hour, $6 a minute, $7 slots. Triggers keep what follows from
-- the limits.
INSERT INTO plan_limits (plan_id, event_type, month, day, hour, minute, slots)
SELECT p.id, w.meter, w.month, w.day, w.hour, w.minute, w.slots
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::int[])
    AS w (plan, meter, month, day, hour, minute, slots)
JOIN subscription_plans p ON p.tier = w.plan
ON CONFLICT (plan_id, event_type) DO UPDATE
    SET month = excluded.month, day = excluded.day, hour = excluded.hour, minute = excluded.minute, slots = excluded.slots
