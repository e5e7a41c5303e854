-- Parameters: $1 plans, $2 meters, pairwise. $3 to $6: limits per month, day, hour and minute; $7: slots; $8 to $11:
-- ceilings of the four limits; $12: bursts. Triggers update the tables that follow from the limits.
INSERT INTO plan_limits (plan_id, event_type, month, day, hour, minute, slots,
                         month_ceiling, day_ceiling, hour_ceiling, minute_ceiling, burst)
SELECT p.id, w.meter, w.month, w.day, w.hour, w.minute, w.slots,
       w.month_ceiling, w.day_ceiling, w.hour_ceiling, w.minute_ceiling, w.burst
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::int[],
            $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::int[])
    AS w (plan, meter, month, day, hour, minute, slots, month_ceiling, day_ceiling, hour_ceiling, minute_ceiling, burst)
JOIN subscription_plans p ON p.tier = w.plan
ON CONFLICT (plan_id, event_type) DO UPDATE
    SET month = excluded.month, day = excluded.day, hour = excluded.hour, minute = excluded.minute, slots = excluded.slots,
        month_ceiling = excluded.month_ceiling, day_ceiling = excluded.day_ceiling,
        hour_ceiling = excluded.hour_ceiling, minute_ceiling = excluded.minute_ceiling, burst = excluded.burst
