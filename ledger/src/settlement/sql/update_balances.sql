-- What was charged and what is no longer reserved. $1 user ids, $2 event types, $3 periods, $4 reserved, $5 charged;
-- distinct triples.
UPDATE quota_balances b
SET reserved = b.reserved - d.reserved, used = b.used + d.charged
FROM unnest($1::uuid[], $2::usage_event_type[], $3::timestamptz[], $4::bigint[], $5::bigint[])
    AS d (user_id, event_type, period_start, reserved, charged)
WHERE b.user_id = d.user_id AND b.event_type = d.event_type AND b.period_start = d.period_start
