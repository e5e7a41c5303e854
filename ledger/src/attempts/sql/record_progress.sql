-- Extends the deadline of a current attempt, and stores its progress if it reports any.
-- Parameters: $1 job, $2 claim, $3 fraction or null, $4 message, $5 when the job was created. Returns no row when the
-- attempt is over. weir_progress() does the same for workers in other languages, which have no outstanding attempts.
WITH attempt AS MATERIALIZED (
    SELECT j.id, j.attempt, j.state
    FROM river_job j
    WHERE j.id = $1 AND claim_of(j.attempt, j.attempted_by) = $2 AND j.created_at = $5
      AND (j.state IN ('running', 'pending')) IS TRUE
), extended AS (
    UPDATE outstanding_attempts o SET deadline_at = clock_timestamp() + o.patience
    FROM attempt a
    WHERE o.job_id = a.id AND o.claim = $2 AND a.state = 'pending'
    RETURNING o.deadline_at
), under_way AS (
    SELECT a.id, a.attempt FROM attempt a WHERE a.state = 'running' OR EXISTS (SELECT 1 FROM extended)
), recorded AS (
    UPDATE quota_reservations r
    SET progress = jsonb_build_object('attempt', u.attempt, 'fraction', $3::float8, 'message', $4::text)
    FROM under_way u
    WHERE r.job_id = u.id AND $3::float8 IS NOT NULL
)
SELECT u.attempt::int AS attempt, (SELECT deadline_at FROM extended) AS deadline_at FROM under_way u
