-- Counts the rows that the deletion of a user would affect, without ended jobs of other clients.
-- Parameter: $1 the user. Reads all reservations, one per unfinished job, and by index the user's other rows.
SELECT (SELECT count(*) FROM (
            SELECT job_id FROM submissions WHERE holder = $1
            UNION
            SELECT job_id FROM quota_reservations WHERE user_id = $1
        ) own) AS jobs,
       (SELECT count(*) FROM quota_reservations WHERE user_id = $1) AS unfinished,
       (SELECT count(*) FROM usage_events WHERE user_id = $1) AS usage_events
