-- Each plan's limits for each meter.
SELECT p.tier::text AS tier, l.event_type::text AS meter, l.month, l.day, l.hour, l.minute, l.slots,
       l.month_ceiling, l.day_ceiling, l.hour_ceiling, l.minute_ceiling, l.burst
FROM plan_limits l
JOIN subscription_plans p ON p.id = l.plan_id
