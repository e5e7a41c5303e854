-- A job as its owner sees it. $output is replaced: a list has no outputs.
SELECT s.job_id AS id, j.kind, j.state, j.queue, j.attempt, j.max_attempts, j.created_at, j.attempted_at, j.finalized_at,
       j.later, j.error,
       $output AS output,
       s.parked_at IS NOT NULL AS parked,
       CASE WHEN (s.progress ->> 'attempt')::int = j.attempt AND j.state = 'running'
            THEN s.progress - 'attempt' END AS progress,
       j.lent, s.start_by AS expires_at,
       CASE WHEN s.ended_at IS NULL THEN s.reserved_amount ELSE 0 END AS reserved, s.ended_at IS NOT NULL AS settled,
       coalesce(u.quota_amount, 0) AS charged,
       (SELECT t.tier FROM tier_of(s.user_id, now()) t) AS plan
FROM weir_jobs s
JOIN LATERAL (
    SELECT j.kind,
           -- An attempt with an outstanding answer.
           CASE WHEN j.state = 'pending' AND EXISTS (SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by))
                THEN 'running' ELSE j.state::text END AS state, j.queue, j.attempt, j.max_attempts, j.created_at,
           attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at) AS attempted_at,
           j.finalized_at,
           j.scheduled_at > now() AS later,
           j.state = 'running' AND coalesce(j.metadata ->> 'weir:lent' = j.attempt::text, false) AS lent,
           error_of(j.metadata, j.errors) AS error
    FROM river_job j
    WHERE j.id = s.job_id
    UNION ALL
    -- River has deleted the job, and the plan keeps it.
    SELECT f.kind, f.state, f.queue, f.attempt, f.max_attempts, f.created_at, f.attempted_at, f.finalized_at, false, false, f.error
    FROM finished_jobs f
    WHERE f.job_id = s.job_id AND NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = s.job_id)
) j ON s.submitted_at IS NOT NULL
LEFT JOIN usage_events u ON u.job_id = s.job_id
