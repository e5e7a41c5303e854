-- New job ids, and the time that the transaction writes.
-- Parameters: $1 how many.
SELECT nextval('river_job_id_seq') AS id, now() AS at FROM generate_series(1, $1::int)
