-- One reservation a job. $1 job ids, $2 holders, $3 user ids, $4 meters, $5 amounts, $6 periods, $7 admitted,
-- $8 seconds to live, $9 the windows besides the month, $10 the moment that decides in which windows it is counted,
-- $11 when they are to start (null: at once), $12 how much of the amounts is overage.
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
