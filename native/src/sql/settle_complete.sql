-- Completes the jobs as River's JobCompleteTx does, but only the attempt that did the work: a job that was taken
-- back and given to somebody else is not touched. $1 ids, $2 attempts, $3 metadata to merge.
--
-- "IS TRUE" keeps the state out of the choice of an index: the planner would otherwise go through all running jobs for
-- each one of these.
UPDATE river_job j
SET state = 'completed', finalized_at = now(), metadata = j.metadata || d.metadata
FROM unnest($1::bigint[], $2::smallint[], $3::jsonb[]) AS d (id, attempt, metadata)
WHERE j.id = d.id AND j.attempt = d.attempt AND (j.state = 'running') IS TRUE
RETURNING j.id
