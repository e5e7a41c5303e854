-- Returns jobs to their queues that were claimed for a River client but never reached it, like the jobs of a dead
-- process. They keep their slots. The lost attempt did not start, so they get an additional one. Its number fences out
-- a worker that receives the claim late. The number of additional attempts is limited, because a job that no client can
-- decode would loop forever.
-- Parameters: $1 the River client, $2 jobs, $3 their claims.
WITH free AS (
    SELECT j.id, LEAST(32767, j.max_attempts + CASE WHEN l.times < 5 THEN 1 ELSE 0 END) AS max_attempts
    FROM unnest($2::bigint[], $3::text[]) AS c (id, claim)
    JOIN river_job j ON j.id = c.id AND claim_of(j.attempt, j.attempted_by) = c.claim
    CROSS JOIN LATERAL (
        SELECT count(*) AS times FROM unnest(j.errors) e WHERE e ->> 'error' = 'the answer to its claim was lost'
    ) l
    WHERE j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] = $1
    ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
), taken AS (
    UPDATE river_job j
    SET state = state_after_failure(j.metadata, j.attempt, free.max_attempts, 'available')::river_job_state,
        finalized_at = CASE WHEN state_after_failure(j.metadata, j.attempt, free.max_attempts, 'available') <> 'available'
                            THEN now() END,
        max_attempts = free.max_attempts,
        scheduled_at = now(),
        errors = array_append(j.errors, attempt_error(j.attempt, now(), 'the answer to its claim was lost'))
    FROM free
    WHERE j.id = free.id
    RETURNING j.id, j.state::text AS state
)
SELECT t.id AS job_id, t.state FROM taken t
