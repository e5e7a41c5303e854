-- The jobs that are due to ask for a slot, the longest due first.
-- Parameters: $1 how many at most; $2 and $3 holders and meters to exclude, pairwise.
SELECT r.job_id, r.holder, r.event_type
FROM quota_reservations r
WHERE r.due_at <= statement_timestamp()
  AND (r.holder, r.event_type) NOT IN (SELECT * FROM unnest($2::uuid[], $3::usage_event_type[]))
ORDER BY r.due_at
LIMIT $1
