-- Copies finished jobs of users before River deletes them: a slice in the order in which they ended. Jobs of the last
-- minute wait for the next round, because a transaction that commits late ended its jobs at its start.
-- Parameters: $1 state, $2 and $3 the end of the previous slice (time and job), $4 the size of a slice.
WITH slice AS MATERIALIZED (
    SELECT j.id, j.finalized_at
    FROM river_job j
    WHERE j.state = $1::text::river_job_state AND j.finalized_at IS NOT NULL
      AND j.finalized_at >= $2 AND (j.finalized_at, j.id) > ($2, $3)
      AND j.finalized_at < now() - interval '1 minute'
    ORDER BY j.finalized_at, j.id
    LIMIT $4
), missing AS MATERIALIZED (
    SELECT o.id, s.user_id, least(o.finalized_at + retention_of(p.retention_days), now() + interval '30 days') AS review_at
    FROM slice o
    CROSS JOIN LATERAL (
        SELECT m.user_id FROM weir_jobs m WHERE m.job_id = o.id AND m.user_id IS NOT NULL AND m.submitted_at IS NOT NULL OFFSET 0
    ) s
    CROSS JOIN LATERAL (SELECT k.plan_id FROM subscription_of(s.user_id, now()) k OFFSET 0) k
    JOIN subscription_plans p ON p.id = k.plan_id
    WHERE NOT EXISTS (SELECT 1 FROM finished_jobs f WHERE f.job_id = o.id AND f.finalized_at = o.finalized_at)
      AND EXISTS (SELECT 1 FROM users u WHERE u.id = s.user_id)
), kept AS (
    INSERT INTO finished_jobs AS k (job_id, user_id, kind, state, queue, attempt, max_attempts, created_at, attempted_at,
                                    finalized_at, error, output, review_at)
    SELECT j.id, m.user_id, j.kind, j.state::text, j.queue, j.attempt, j.max_attempts, j.created_at,
           attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at), j.finalized_at,
           error_of(j.metadata, j.errors),
           CASE WHEN j.state = 'completed' THEN j.metadata -> 'output' END, m.review_at
    FROM missing m
    -- By id alone: with a condition on `finalized_at`, the planner may read all finished jobs for each one.
    CROSS JOIN LATERAL (SELECT * FROM river_job r WHERE r.id = m.id OFFSET 0) j
    WHERE j.finalized_at IS NOT NULL AND m.review_at > now()
    -- A job that was retried after it had failed.
    ON CONFLICT (job_id) DO UPDATE
        SET state = excluded.state, queue = excluded.queue, attempt = excluded.attempt,
            max_attempts = excluded.max_attempts, attempted_at = excluded.attempted_at,
            finalized_at = excluded.finalized_at, error = excluded.error, output = excluded.output,
            review_at = excluded.review_at
    RETURNING 1
)
SELECT (SELECT count(*) FROM kept) AS kept, l.finalized_at, l.id
FROM (SELECT count(*) AS size FROM slice) c
LEFT JOIN LATERAL (SELECT * FROM slice ORDER BY finalized_at DESC, id DESC LIMIT 1) l ON true
