-- Inserts one reservation per job. Parameters:
--
-- - $1 to $6: job ids, holders, user ids, meters, amounts, periods.
-- - $7: whether it is admitted.
-- - $8: seconds to live.
-- - $9: the windows other than the month.
-- - $10: the time that determines its windows.
-- - $11: start times (null: immediately).
-- - $12: the overage in the amounts.
INSERT INTO quota_reservations
    (user_id, event_type, reserved_amount, job_id, expires_at, holder, period_start, windows, created_at, admitted_at,
     parked_at, due_at, overage)
SELECT user_id, event_type, amount, job_id, now() + make_interval(secs => $8), holder, period_start, windows, $10,
       CASE WHEN admitted THEN clock_timestamp() END,
       CASE WHEN NOT admitted AND run_at IS NULL THEN clock_timestamp() END,
       run_at, overage
FROM unnest($1::bigint[], $2::uuid[], $3::uuid[], $4::usage_event_type[], $5::bigint[], $6::timestamptz[], $7::boolean[],
            $9::smallint[], $11::timestamptz[], $12::bigint[])
    AS r (job_id, holder, user_id, event_type, amount, period_start, admitted, windows, run_at, overage)
