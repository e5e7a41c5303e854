-- Jobs whose time to ask for a slot has come, the longest due first. $1 how many at most.
SELECT r.job_id, r.holder, r.event_type
FROM quota_reservations r
WHERE r.due_at <= statement_timestamp()
ORDER BY r.due_at
LIMIT $1
