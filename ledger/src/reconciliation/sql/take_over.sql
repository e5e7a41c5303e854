-- Takes over jobs with a last attempt by a registered process without a heartbeat. Other River clients have no
-- heartbeat. Their jobs of known kinds are taken over when the attempt exceeds the kind's timeout.
-- Parameters: $1 seconds without a heartbeat, $2 kinds, $3 seconds that an attempt of each may take, $4 how many at
-- most.
--
-- Without dead processes, or without kinds, it does not read the running jobs for them. While a session holds an old
-- snapshot, the index has an entry for every job that has run since. A dead process is forgotten after an hour.
--
-- Skips locked rows of processes: workers in other languages lock theirs in transactions of any length.
WITH ahead AS (
    -- Heartbeats from the future, because the clock was set back. A living process sends another one, and a dead
    -- process still counts as dead in time.
    UPDATE processes SET beat_at = clock_timestamp()
    WHERE client_id IN (SELECT p.client_id FROM processes p WHERE p.beat_at > clock_timestamp() + interval '1 second'
                        FOR UPDATE SKIP LOCKED)
), dead AS (
    SELECT client_id FROM processes WHERE beat_at < clock_timestamp() - make_interval(secs => $1)
), lost AS (
    SELECT j.id, d.client_id
    FROM dead d
    JOIN river_job j ON j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] = d.client_id
    WHERE (SELECT count(*) FROM dead) > 0
    -- A process that claims jobs is alive. When the clock jumps ahead, a process continues to claim until its next
    -- heartbeat. Without this condition, the same job would lose an attempt in every round until then.
      AND (j.attempted_at BETWEEN clock_timestamp() - make_interval(secs => $1) AND clock_timestamp() + interval '1 second')
        IS NOT TRUE
    UNION ALL
    SELECT j.id, j.attempted_by[array_upper(j.attempted_by, 1)]
    FROM unnest($2::text[], $3::float8[]) AS k (kind, max_seconds)
    JOIN river_job j ON j.state = 'running' AND j.kind = k.kind
        AND j.attempted_at < now() - make_interval(secs => k.max_seconds)
    WHERE cardinality($2) > 0
      AND NOT EXISTS (
        SELECT 1 FROM processes p WHERE p.client_id = j.attempted_by[array_upper(j.attempted_by, 1)]
    )
    LIMIT $4
), free AS (
    -- Skips locked rows, so that they do not delay other jobs.
    SELECT j.id FROM river_job j JOIN lost l ON l.id = j.id WHERE j.state = 'running'
    ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
), taken AS (
    UPDATE river_job j
    SET state = state_after_failure(j.metadata, j.attempt, j.max_attempts, 'available')::river_job_state,
        finalized_at = CASE WHEN state_after_failure(j.metadata, j.attempt, j.max_attempts, 'available') <> 'available'
                            THEN now() END,
        scheduled_at = now(),
        errors = array_append(j.errors, attempt_error(j.attempt, now(), 'the process that worked the job died'))
    FROM lost l
    WHERE j.id = l.id AND j.id IN (SELECT id FROM free)
    RETURNING j.id, l.client_id, j.state::text AS state
), forgotten AS (
    DELETE FROM processes
    WHERE client_id IN (SELECT p.client_id FROM processes p JOIN dead d ON d.client_id = p.client_id
                        WHERE p.beat_at < clock_timestamp() - interval '1 hour' FOR UPDATE OF p SKIP LOCKED)
)
SELECT t.id AS job_id, t.client_id, t.state FROM taken t
