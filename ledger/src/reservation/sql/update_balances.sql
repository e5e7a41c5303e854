-- $1 user ids, $2 event types, $3 periods, $4 amounts, $5 plan limits; distinct triples.
INSERT INTO quota_balances AS b (user_id, event_type, period_start, reserved, granted_limit)
SELECT * FROM unnest($1::uuid[], $2::usage_event_type[], $3::timestamptz[], $4::bigint[], $5::bigint[])
ON CONFLICT (user_id, event_type, period_start)
DO UPDATE SET reserved = b.reserved + excluded.reserved, granted_limit = excluded.granted_limit
