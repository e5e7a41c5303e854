-- The jobs among these that already have a usage event.
-- Parameters: $1 job ids.
SELECT u.job_id
FROM unnest($1::bigint[]) AS a (job_id)
CROSS JOIN LATERAL (SELECT e.job_id FROM usage_events e WHERE e.job_id = a.job_id OFFSET 0) u
