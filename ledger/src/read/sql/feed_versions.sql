-- A text that changes when the owner's view of a job changes, and whether the job is final. A job that another client
-- ended is charged a moment later.
SELECT j.id,
       concat_ws(' ', j.xmin, j.scheduled_at > now(), r.parked_at, r.due_at, r.reserved_amount, r.progress, r.job_id) AS version,
       j.state IN ('completed', 'cancelled', 'discarded') AND r.job_id IS NULL AS over
FROM river_job j
LEFT JOIN quota_reservations r ON r.job_id = j.id
WHERE j.id = ANY ($1)
