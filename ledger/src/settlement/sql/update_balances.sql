-- Adds charges to balances and subtracts ended reservations. The holders are locked, so a balance stays at its place
-- (ctid). charge_reservation() does this for SQL callers.
-- Parameters, with distinct windows: $1 user ids, $2 meters, $3 spans, $4 starts of windows, $5 reserved, $6 charged.
UPDATE quota_balances b
SET reserved = b.reserved - d.reserved, used = b.used + d.charged, changes = b.changes + 1
FROM (
    SELECT n.reserved, n.charged,
           (SELECT k.ctid FROM quota_balances k
            WHERE k.user_id = n.user_id AND k.event_type = n.event_type AND k.span = n.span
              AND k.period_start = n.period_start
            ORDER BY k.generation DESC LIMIT 1) AS place
    FROM unnest($1::uuid[], $2::usage_event_type[], $3::text[], $4::timestamptz[], $5::bigint[], $6::bigint[])
        AS n (user_id, event_type, span, period_start, reserved, charged)
) d
WHERE b.ctid = d.place
