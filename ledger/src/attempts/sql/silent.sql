-- The attempts with a handler that did not report in time.
-- Parameters: $1 how many at most, in random order, so that attempts with a locked holder do not block others.
SELECT o.job_id, o.claim, extract(epoch FROM o.patience)::float8 AS patience, coalesce(j.created_at, now()) AS created_at
FROM outstanding_attempts o
LEFT JOIN LATERAL (SELECT k.created_at FROM river_job k WHERE k.id = o.job_id OFFSET 0) j ON true
WHERE o.deadline_at < clock_timestamp()
ORDER BY random()
LIMIT $1
