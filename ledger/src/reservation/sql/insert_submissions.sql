-- Inserts one submission per job.
-- Parameters: $1 job ids, $2 holders, $3 user ids, $4 meters, $5 amounts, $6 keys, $7 hashes.
INSERT INTO submissions (job_id, holder, user_id, event_type, reserved_amount, idempotency_key, request_hash)
SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::uuid[], $4::usage_event_type[], $5::bigint[], $6::text[], $7::bytea[])
