-- Inserts one usage event per charged job. charge_reservation() does this for SQL callers. Parameters:
--
-- - $1 to $5: user ids, meters, amounts, job ids, periods.
-- - $6: the windows other than the month.
-- - $7: when it was reserved, if a window depends on it.
-- - $8: the overage in the amounts.
INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start, windows, reserved_at, overage)
SELECT * FROM unnest($1::uuid[], $2::usage_event_type[], $3::bigint[], $4::bigint[], $5::timestamptz[],
                     $6::smallint[], $7::timestamptz[], $8::bigint[])
