-- One event a charged job. $1 user ids, $2 event types, $3 amounts, $4 job ids, $5 periods.
INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start)
SELECT * FROM unnest($1::uuid[], $2::usage_event_type[], $3::int[], $4::bigint[], $5::timestamptz[])
