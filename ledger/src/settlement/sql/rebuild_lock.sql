-- Locks the holder of a job, with all its meters, to rebuild its counters, and returns it.
-- Parameters: $1 job id.
SELECT r.holder, lock_holders(ARRAY[r.holder]) AS locked FROM quota_reservations r WHERE r.job_id = $1
