-- Takes the same locks as a reservation, in the same order. $1 job ids.
SELECT h.holder
FROM holders h
JOIN (SELECT DISTINCT holder, event_type FROM quota_reservations WHERE job_id = ANY ($1::bigint[])) w
    USING (holder, event_type)
ORDER BY h.holder, h.event_type
FOR NO KEY UPDATE OF h
