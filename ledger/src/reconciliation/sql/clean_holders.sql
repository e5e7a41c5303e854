-- Deletes client addresses that hold nothing and have no job left, from a slice of all addresses. Users are not
-- read: while a session holds an old snapshot, each of them has very many versions.
-- Parameters: $1 and $2 the last holder and meter of the previous slice, $3 the size of a slice. `last` and
-- `last_event_type` are null after the last slice, `done` is the number of deleted holders.
WITH slice AS MATERIALIZED (
    SELECT holder, event_type, slots_in_use, parked, row_number() OVER (ORDER BY holder, event_type) AS n
    FROM (
        SELECT * FROM holders
        WHERE user_id IS NULL AND (holder, event_type) > ($1::uuid, $2::usage_event_type) ORDER BY holder, event_type LIMIT $3
    ) h
), idle AS (
    SELECT h.holder, h.event_type
    FROM slice s
    JOIN holders h ON h.holder = s.holder AND h.event_type = s.event_type
    WHERE h.slots_in_use = 0 AND h.parked = 0
      AND NOT EXISTS (SELECT 1 FROM weir_jobs b WHERE b.holder = h.holder)
    ORDER BY 1, 2
    FOR UPDATE OF h SKIP LOCKED
), gone AS (
    DELETE FROM holders h USING idle i WHERE h.holder = i.holder AND h.event_type = i.event_type RETURNING 1
)
SELECT l.holder AS last, l.event_type AS last_event_type, (SELECT count(*) FROM gone) AS done
FROM (SELECT 1) one
LEFT JOIN slice l ON l.n = $3
