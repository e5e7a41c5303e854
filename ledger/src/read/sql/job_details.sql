-- A job as an operator sees it, from any client.
-- Parameters: $1 job id. Looks up rows by key. Omits the output, which may have megabytes, and all errors but the last
-- twenty.
SELECT j.kind,
       CASE WHEN j.state = 'pending' AND EXISTS (SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by))
            THEN 'running' ELSE j.state::text END AS state,
       j.queue, j.priority, j.attempt, j.max_attempts,
       j.created_at, j.scheduled_at, j.finalized_at,
       attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at) AS attempted_at,
       j.attempted_by[array_upper(j.attempted_by, 1)] AS attempted_by,
       to_jsonb(j.errors[greatest(1, coalesce(array_upper(j.errors, 1), 0) - 19):]) AS errors,
       j.args, j.metadata - 'output' AS metadata,
       s.holder, s.user_id, (SELECT k.subject FROM users k WHERE k.id = s.user_id) AS subject,
       CASE WHEN s.ended_at IS NULL THEN s.reserved_amount END AS reserved_amount, s.admitted_at, s.parked_at,
       CASE WHEN s.ended_at IS NULL THEN s.expires_at END AS expires_at,
       u.quota_amount AS charged
FROM river_job j
LEFT JOIN weir_jobs s ON s.job_id = j.id
LEFT JOIN usage_events u ON u.job_id = j.id
WHERE j.id = $1
