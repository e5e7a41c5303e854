-- What was charged and what is no longer reserved. $1 user ids, $2 event types, $3 spans, $4 starts of windows,
-- $5 reserved, $6 charged; distinct windows.
UPDATE quota_balances b
SET reserved = b.reserved - d.reserved, used = b.used + d.charged
FROM unnest($1::uuid[], $2::usage_event_type[], $3::text[], $4::timestamptz[], $5::bigint[], $6::bigint[])
    AS d (user_id, event_type, span, period_start, reserved, charged)
WHERE b.user_id = d.user_id AND b.event_type = d.event_type AND b.span = d.span AND b.period_start = d.period_start
