-- Cancels jobs that still wait after their time to start. Their settlement then returns the quota. Reads the index of
-- expired reservations, in which the jobs that run are skipped.
-- Parameters: $1 how many at most. Skips locked jobs, which are being ended or claimed.
UPDATE river_job j
SET state = 'cancelled', finalized_at = now(),
    metadata = j.metadata || jsonb_build_object('weir:expired', true, 'weir:reason', 'it had not started before it expired',
                                                'weir:reason_attempt', j.attempt)
FROM (
    SELECT w.id, r.holder
    FROM quota_reservations r
    CROSS JOIN LATERAL (
        SELECT k.id FROM river_job k
        WHERE k.id = r.job_id AND (k.state IN ('available', 'pending', 'retryable', 'scheduled')) IS TRUE
          -- A job with an outstanding answer counts as running.
          AND NOT (k.state = 'pending' AND EXISTS (SELECT 1 FROM outstanding_answers(k.id, k.attempt, k.attempted_by)))
        OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED
    ) w
    WHERE r.start_by <= now()
    ORDER BY r.start_by
    LIMIT $1
) expired
WHERE j.id = expired.id
RETURNING j.id AS job_id, expired.holder
