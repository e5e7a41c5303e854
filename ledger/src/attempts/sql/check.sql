-- The attempts of a worker that have to stop. Does not wait for the disk: that would keep rows locked that may be about to
-- be settled, and a lost write is repeated.
-- Parameters: $1 the worker, $2 jobs and $3 attempts, pairwise, $4 whether to find lost ones. As check_attempts().
SELECT c.job_id, c.attempt::smallint, c.state = 'taken_over' AS is_taken_over
FROM (SELECT set_config('synchronous_commit', 'off', true) OFFSET 0) unhurried
CROSS JOIN LATERAL check_attempts($1, $2::bigint[], $3::int[], $4) c
WHERE c.state <> 'running'
