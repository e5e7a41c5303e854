-- Inserts a usage event without a job into the current billing period, and updates its balance.
-- Parameters: $1 user, $2 meter, $3 amount, $4 reason, $5 the part that grants get back, and $6 the part that was overage;
-- neither is positive. A reduction needs earlier usage, so its balance exists. An
-- operator's adjustment counts as granted, regardless of the plan's limit.
WITH period AS (
    SELECT period_start_of($1, now()) AS start
), event AS (
    INSERT INTO usage_events (user_id, event_type, quota_amount, period_start, reason, from_grants, overage)
    SELECT $1, $2, $3, p.start, $4, $5, $6 FROM period p
    RETURNING id
), counted AS (
    UPDATE holders h
    SET used = h.used + $3, from_grants = h.from_grants + $5, changes = h.changes + 1,
        granted_limit = greatest(h.granted_limit, h.used + $3 + h.reserved - h.from_grants - $5)
    FROM period p
    WHERE h.holder = $1 AND h.event_type = $2 AND h.period_start = p.start
    RETURNING 1
), otherwise AS (
    INSERT INTO window_balances AS b (user_id, event_type, span, period_start, used, granted_limit)
    SELECT $1, $2, 'month', p.start, greatest($3, 0), greatest($3, 0) FROM period p
    WHERE NOT EXISTS (SELECT FROM counted)
    ON CONFLICT (user_id, event_type, span, period_start) DO UPDATE
        SET used = b.used + $3, from_grants = b.from_grants + $5,
            granted_limit = greatest(b.granted_limit, b.used + $3 + b.reserved - b.from_grants - $5)
)
SELECT id FROM event
