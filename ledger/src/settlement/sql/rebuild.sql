-- Rebuilds the counters of a job's holder: always if $2, and else if the holder has no row. Returns the holder.
-- Parameters: $1 job id, $2.
SELECT r.holder, rebuild_accounts(ARRAY[r.holder]) AS rebuilt
FROM quota_reservations r
WHERE r.job_id = $1
  AND ($2 OR NOT EXISTS (SELECT 1 FROM holders h WHERE h.holder = r.holder AND h.event_type = r.event_type))
