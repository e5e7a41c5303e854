-- Jobs that were claimed for a River client and never came to it go back to their queues, as those of a process that died.
-- They keep their slots. $1 the River client, $2 jobs, $3 their claims.
WITH free AS (
    SELECT j.id
    FROM unnest($2::bigint[], $3::text[]) AS l (id, claim)
    JOIN river_job j ON j.id = l.id AND claim_of(j.attempt, j.attempted_by) = l.claim
    WHERE j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] = $1
    ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
), taken AS (
    UPDATE river_job j
    SET state = (CASE WHEN j.metadata ? 'cancel_attempted_at' THEN 'cancelled'
                      WHEN j.attempt >= j.max_attempts THEN 'discarded'
                      ELSE 'available' END)::river_job_state,
        finalized_at = CASE WHEN j.metadata ? 'cancel_attempted_at' OR j.attempt >= j.max_attempts THEN now() END,
        scheduled_at = now(),
        errors = array_append(j.errors, jsonb_build_object(
            'at', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            'attempt', j.attempt, 'error', 'the answer to its claim was lost', 'trace', ''))
    FROM free
    WHERE j.id = free.id
    RETURNING j.id, j.state::text AS state, j.queue
), told AS (
    SELECT pg_notify(river_channel('river_insert'), json_build_object('queue', q.queue)::text)
    FROM (SELECT DISTINCT queue FROM taken WHERE state = 'available') q
)
SELECT t.id AS job_id, t.state, (SELECT count(*) FROM told) AS told FROM taken t
