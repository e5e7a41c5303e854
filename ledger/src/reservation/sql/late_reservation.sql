-- The reservation of a job that is there already. One that it has keeps its amount and its windows. A submission that
-- is charged anew says what it reserves now.
-- $1 job id, $2 holder, $3 user id, $4 meter, $5 amount, $6 period, $7 admitted, $8 seconds to live,
-- $9 the windows besides the month, $10 the moment that decides in which windows it is counted, $11 overage.
WITH submitted AS (
    UPDATE submissions s
    SET reserved_amount = $5
    WHERE s.job_id = $1 AND s.reserved_amount <> $5
      AND NOT EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = $1)
      AND NOT EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = $1)
)
INSERT INTO quota_reservations
    (job_id, holder, user_id, event_type, reserved_amount, period_start, expires_at, windows, created_at, admitted_at,
     parked_at, overage)
VALUES ($1, $2, $3, $4, $5, $6, now() + make_interval(secs => $8), $9, $10,
        CASE WHEN $7::boolean THEN clock_timestamp() END, CASE WHEN NOT $7::boolean THEN clock_timestamp() END, $11)
ON CONFLICT (job_id) DO UPDATE
    SET admitted_at = excluded.admitted_at, parked_at = excluded.parked_at, due_at = NULL
