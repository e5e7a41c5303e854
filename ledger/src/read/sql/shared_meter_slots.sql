-- The slots of meters that several services count, by queue.
-- Parameters: $1 meters. Reads all reservations once, and the job of each one of these meters.
SELECT j.queue, count(r.admitted_at) AS slots_in_use, count(r.parked_at) AS parked
FROM quota_reservations r
JOIN river_job j ON j.id = r.job_id
WHERE r.event_type = ANY ($1::text[])
GROUP BY 1
