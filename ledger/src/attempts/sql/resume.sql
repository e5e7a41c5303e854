-- Makes an attempt run again whose answer is no longer outstanding, for the end that the caller writes in the same
-- transaction. One that still runs in its process is left as it is. The caller holds the lock of the job's holder.
-- $1 job, $2 claim, $3 whether only if the handler has reported nothing for too long, $4 when the job was created.
-- No row when the attempt is not under way; what was outstanding of one that somebody ended by hand is forgotten then.
WITH answered AS (
    DELETE FROM outstanding_attempts o
    WHERE o.job_id = $1 AND o.claim = $2 AND (NOT $3::boolean OR o.deadline_at < clock_timestamp())
      AND NOT EXISTS (SELECT 1 FROM river_job n WHERE n.id = $1 AND n.created_at <> $4)
    RETURNING o.job_id
)
UPDATE river_job j SET state = 'running'
WHERE j.id = $1 AND claim_of(j.attempt, j.attempted_by) = $2 AND j.created_at = $4
  AND ((j.state = 'running') IS TRUE AND NOT $3::boolean
       OR (j.state = 'pending') IS TRUE AND EXISTS (SELECT 1 FROM answered))
RETURNING j.attempt::int AS attempt
