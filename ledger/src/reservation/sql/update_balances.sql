-- $1 user ids, $2 meters, $3 spans, $4 starts of windows, $5 amounts, $6 beyond what nothing is accepted; distinct windows.
-- What was beyond a limit that was lowered since is no fault of what is accepted now, which grants pay for.
INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, reserved, granted_limit)
SELECT * FROM unnest($1::uuid[], $2::usage_event_type[], $3::text[], $4::timestamptz[], $5::bigint[], $6::bigint[])
ON CONFLICT (user_id, event_type, span, period_start)
DO UPDATE SET reserved = b.reserved + excluded.reserved,
    granted_limit = greatest(excluded.granted_limit, b.used + b.reserved - b.from_grants)
