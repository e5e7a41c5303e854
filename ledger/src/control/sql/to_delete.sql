-- Counts the rows that the deletion of a user would affect, without ended jobs of other clients.
-- Parameter: $1 the user. Reads the user's rows by index.
SELECT (SELECT count(*) FROM weir_jobs WHERE holder = $1) AS jobs,
       (SELECT count(*) FROM quota_reservations WHERE holder = $1) AS unfinished,
       (SELECT count(*) FROM usage_events WHERE user_id = $1) AS usage_events
