-- Reserves amounts in windows. Usage above a limit that was lowered later stays allowed. The holders are locked, so a
-- balance stays at its place (ctid), and no other transaction creates one. The SQL body of this rule is
-- reserve_in_windows(). Parameters, with distinct windows: $1 user ids, $2 meters, $3 spans, $4 starts of windows, $5
-- amounts, $6 the maximum accepted.
WITH wanted AS MATERIALIZED (
    SELECT n.*,
           (SELECT k.ctid FROM quota_balances k
            WHERE k.user_id = n.user_id AND k.event_type = n.event_type AND k.span = n.span
              AND k.period_start = n.period_start
            ORDER BY k.generation DESC LIMIT 1) AS place
    FROM unnest($1::uuid[], $2::usage_event_type[], $3::text[], $4::timestamptz[], $5::bigint[], $6::bigint[])
        AS n (user_id, event_type, span, period_start, amount, accepted)
), updated AS (
    UPDATE quota_balances b
    SET reserved = b.reserved + n.amount,
        granted_limit = greatest(n.accepted, b.used + b.reserved - b.from_grants),
        changes = b.changes + 1
    FROM wanted n
    WHERE b.ctid = n.place
)
INSERT INTO quota_balances (user_id, event_type, span, period_start, reserved, granted_limit)
SELECT user_id, event_type, span, period_start, amount, accepted FROM wanted WHERE place IS NULL
