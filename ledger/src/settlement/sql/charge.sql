-- One event a charged job. $1 user ids, $2 meters, $3 amounts, $4 job ids, $5 periods, $6 windows besides the
-- month, $7 when it was reserved, where that matters to a window, $8 how much of the amounts is overage.
INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start, windows, reserved_at, overage)
SELECT * FROM unnest($1::uuid[], $2::usage_event_type[], $3::bigint[], $4::bigint[], $5::timestamptz[],
                     $6::smallint[], $7::timestamptz[], $8::bigint[])
