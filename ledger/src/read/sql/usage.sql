-- One row per meter, with the columns of account_of(). An unknown user has the default plan.
-- Parameters: $1 user.
SELECT m.name AS meter, m.unit, clock.at, a.tier, a.lane, a.slots, a.own_slots, a.period_start, a.period_end,
       a.monthly_limit, a.monthly_ceiling, a.used, a.reserved, a.from_grants, a.granted,
       a.short_spans, a.short_limits, a.short_ceilings, a.short_used, a.short_reserved
FROM meters m
CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
CROSS JOIN LATERAL account_of($1, m.name, true, clock.at) a
ORDER BY m.name
