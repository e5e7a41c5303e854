-- Attempts whose handler has said nothing for too long. $1 how many at most; any of them, so that those that cannot be taken
-- back now keep no others from it.
SELECT o.job_id, o.claim, extract(epoch FROM o.patience)::float8 AS patience
FROM outstanding_attempts o
WHERE o.deadline_at < clock_timestamp()
ORDER BY random()
LIMIT $1
