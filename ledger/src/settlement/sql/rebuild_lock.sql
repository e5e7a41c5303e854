-- Locks the holder of a job, with all its meters, to rebuild its counters. $1 job id.
SELECT k.holder
FROM (SELECT holder FROM quota_reservations WHERE job_id = $1) r
CROSS JOIN LATERAL (
    SELECT h.holder FROM holders h WHERE h.holder = r.holder ORDER BY h.event_type OFFSET 0 FOR NO KEY UPDATE
) k
