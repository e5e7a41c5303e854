-- Writes the reservation of an existing job. An existing reservation keeps its amount and windows. If a submission is
-- charged again, it gets the newly reserved amount. Parameters:
--
-- - $1 to $6: job id, holder, user id, meter, amount, period.
-- - $7: whether it is admitted.
-- - $8: seconds to live.
-- - $9: the windows other than the month.
-- - $10: the time that determines its windows.
-- - $11: overage.
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
