-- One row per meter, with the columns of account_of(). An unknown user has the default plan.
-- Parameters: $1 user.
SELECT m.name AS meter, m.unit, clock.at, a.tier, a.period_start, a.period_end, a.spans, a.starts, a.ends,
       a.limits, a.ceilings, a.used_in, a.reserved_in, a.from_grants, a.granted,
       nullif(a.slots_now, 2147483647) AS slot_limit,
       CASE WHEN a.burst > a.slots_now THEN a.burst::bigint END AS burst
FROM meters m
CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
CROSS JOIN LATERAL account_of($1, m.name, true, clock.at) a
ORDER BY m.name
