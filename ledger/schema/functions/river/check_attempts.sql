-- Returns the states of a worker's attempts, and ends those that are lost or overdue for too long. The only body of this
-- rule.
--
-- | parameter | |
-- |---|---|
-- | `worker` | the name under which the jobs were claimed |
-- | `jobs`, `attempts` | the attempts that the worker knows, pairwise |
-- | `finds_lost` | whether to look for attempts that the worker does not know. The answer to their claim was lost |
--
-- | state | |
-- |---|---|
-- | `running` | |
-- | `cancelled` | the job's cancellation was requested. The attempt should end |
-- | `overdue` | it takes longer than the service's `timeout`. Thirty seconds later, the job is taken over |
-- | `taken_over` | the attempt is over, or the job is gone. Nothing that it still writes counts |
--
-- A lost attempt also returns as `taken_over`. It is lost ten seconds after its claim, because the answer may be on its
-- way. It did not start, so its job gets an additional attempt, at most five times: a job that no worker can read must
-- not run for ever.
--
-- Attempts of Weir's own processes are never overdue here. These processes keep the timeouts themselves, and an attempt
-- that has ended may still wait for its settlement.
--
-- River's leader may be another program's client, which rescues a job as stuck by its attempted_at. So this moves
-- attempted_at of attempts that run longer than a second, and stores the true start in the metadata once, so that the
-- next call changes no index.
-- Cost: for each attempt one look-up and one small write; with `finds_lost`, one index range over the running jobs.
-- Callers: weir_heartbeat; ledger/src/attempts/sql/check.sql.
CREATE OR REPLACE FUNCTION check_attempts(worker text, jobs bigint[], attempts int[], finds_lost boolean)
RETURNS TABLE (job_id bigint, attempt int, state text)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    grace CONSTANT interval := '30 seconds';
    lost_after CONSTANT interval := '10 seconds';
    clock CONSTANT timestamptz := clock_timestamp();
    is_weirs CONSTANT boolean := worker LIKE 'weir\_%';
BEGIN
    RETURN QUERY
    WITH known AS MATERIALIZED (
        SELECT DISTINCT u.id, u.attempt FROM unnest(check_attempts.jobs, check_attempts.attempts) AS u (id, attempt)
    ), found AS MATERIALIZED (
        SELECT k.id, k.attempt, j.claim, false AS is_lost, j.is_cancelled,
               CASE WHEN NOT is_weirs THEN clock - j.started_at - make_interval(secs => s.timeout) END AS over
        FROM known k
        LEFT JOIN LATERAL (
            SELECT claim_of(j.attempt, j.attempted_by) AS claim, j.kind, j.metadata ? 'cancel_attempted_at' AS is_cancelled,
                   attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at) AS started_at
            FROM river_job j
            -- "IS TRUE" keeps the planner from using the state to choose an index.
            WHERE j.id = k.id AND j.attempt = k.attempt AND (j.state = 'running') IS TRUE
              AND j.attempted_by[array_upper(j.attempted_by, 1)] = worker AND (is_weirs OR is_service_kind(j.kind))
            OFFSET 0
        ) j ON true
        LEFT JOIN LATERAL (SELECT max(s.timeout) AS timeout FROM weir_services s WHERE s.kind = j.kind) s ON true
        UNION ALL
        SELECT j.id, j.attempt, claim_of(j.attempt, j.attempted_by), true, false, NULL
        FROM river_job j
        WHERE finds_lost AND j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] = worker
          -- Not by the clock: the call may have waited for a claim of the worker, which the list does not have.
          AND j.attempted_at < statement_timestamp() - lost_after AND (is_weirs OR is_service_kind(j.kind))
          AND NOT EXISTS (SELECT FROM known k WHERE k.id = j.id AND k.attempt = j.attempt)
    ), free AS MATERIALIZED (
        SELECT j.id, f.claim, coalesce(f.is_lost OR f.over > grace, false) AS ends,
               CASE WHEN f.is_lost THEN 'the answer to its claim was lost'
                    ELSE 'the attempt took longer than the timeout of its service' END AS reason,
               n.max_attempts, state_after_failure(j.metadata, j.attempt, n.max_attempts, 'available') AS next_state
        FROM found f
        JOIN river_job j ON j.id = f.id AND claim_of(j.attempt, j.attempted_by) = f.claim
        CROSS JOIN LATERAL (
            SELECT least(32767, j.max_attempts + CASE WHEN f.is_lost AND (
                   SELECT count(*) FROM unnest(j.errors) e WHERE e ->> 'error' = 'the answer to its claim was lost') < 5
                THEN 1 ELSE 0 END) AS max_attempts OFFSET 0
        ) n
        WHERE (j.state = 'running') IS TRUE AND j.attempted_at < clock - interval '1 second'
        ORDER BY j.id
        FOR NO KEY UPDATE OF j SKIP LOCKED
    ), changed AS (
        UPDATE river_job j
        SET state = CASE WHEN f.ends THEN f.next_state::river_job_state ELSE j.state END,
            max_attempts = f.max_attempts,
            attempted_at = CASE WHEN f.ends THEN j.attempted_at ELSE clock END,
            scheduled_at = CASE WHEN f.ends THEN clock ELSE j.scheduled_at END,
            finalized_at = CASE WHEN f.ends AND f.next_state <> 'available' THEN clock END,
            errors = CASE WHEN f.ends THEN array_append(j.errors, attempt_error(j.attempt, clock, f.reason)) ELSE j.errors END,
            metadata = CASE WHEN f.ends OR j.metadata #>> '{weir:started,claim}' = f.claim THEN j.metadata
                            ELSE j.metadata || jsonb_build_object(
                                'weir:started', jsonb_build_object('at', j.attempted_at, 'claim', f.claim)) END
        FROM free f
        WHERE j.id = f.id
        RETURNING j.id, f.ends
    )
    SELECT f.id, f.attempt::int,
           CASE WHEN f.claim IS NULL OR c.ends THEN 'taken_over'
                WHEN f.is_cancelled THEN 'cancelled'
                WHEN f.over > '0' THEN 'overdue'
                ELSE 'running' END
    FROM found f
    LEFT JOIN changed c ON c.id = f.id
    WHERE NOT f.is_lost OR c.ends;
END
$$;
