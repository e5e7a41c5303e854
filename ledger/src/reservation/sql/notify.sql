-- River's own notification that a queue has a job. $1 payloads, one a queue.
SELECT pg_notify(river_channel('river_insert'), payload) FROM unnest($1::text[]) AS payload
