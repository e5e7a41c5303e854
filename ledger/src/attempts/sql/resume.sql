-- Makes an attempt run again, so that the caller can end it in the same transaction. An attempt that still runs in its
-- process stays unchanged. Deletes the row of an attempt that was ended by hand. The caller holds the lock of the job's
-- holder.
-- Parameters: $1 job, $2 claim, $3 whether to resume only if the handler has reported nothing for too long, $4 when the
-- job was created. Returns no row when the attempt is over.
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
