-- Takes the same locks as a reservation, in the same order. $1 job ids.
SELECT h.holder
FROM (
    SELECT DISTINCT holder, event_type FROM quota_reservations WHERE job_id = ANY ($1::bigint[]) ORDER BY 1, 2
) w
CROSS JOIN LATERAL (
    SELECT k.holder FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type
    OFFSET 0 FOR NO KEY UPDATE
) h
