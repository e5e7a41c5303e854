-- Creates the deleted row of a job's holder again, with counters of zero: rebuild_holders.sql counts next. SQL callers
-- create and count by lock_holder_of_job().
-- Parameters: $1 job id.
INSERT INTO holders (holder, event_type, user_id)
SELECT r.holder, r.event_type, r.user_id FROM quota_reservations r WHERE r.job_id = $1
ON CONFLICT (holder, event_type) DO NOTHING
