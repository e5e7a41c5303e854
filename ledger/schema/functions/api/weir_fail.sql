-- Records a failed attempt as River does, inside the caller's transaction, and frees its slot.
--
-- | parameter | |
-- |---|---|
-- | `error` | the message. Its first 10 000 characters are stored |
-- | `retry_at` | the time of the next attempt, at least a second from now and within 366 days. Default: by the service's `retry`, else by River's policy |
-- | `created_at` | when the job was created, as `weir_claim` returned it. Another job with this id is fenced out. Default: not checked |
--
-- | outcome | |
-- |---|---|
-- | `retry` | the job keeps its quota and runs again |
-- | `discarded` | no attempts are left. Nothing is charged |
-- | `cancelled` | the job was cancelled. Nothing is charged |
-- | `fenced_out` | this attempt is no longer the current one. Nothing was changed |
--
-- Errors: as `weir_complete`.
--
-- Cost: as `weir_complete`, with the same lock.
--
-- Callers: weir_settle_many; other languages, as role weir_worker.
CREATE OR REPLACE FUNCTION weir_fail(job_id bigint, attempt int, error text, retry_at timestamptz DEFAULT NULL,
                          created_at timestamptz DEFAULT NULL, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    IF is_another_job(weir_fail.job_id, weir_fail.created_at)
        OR EXISTS (SELECT FROM river_job j WHERE j.id = weir_fail.job_id AND NOT is_service_kind(j.kind)) THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    outcome := fail_attempt(weir_fail.job_id, weir_fail.attempt, weir_fail.error, weir_fail.retry_at);
END
$$;

COMMENT ON FUNCTION weir_fail IS
    'records a failed attempt as River does and frees its slot; outcome: retry, discarded, cancelled, fenced_out';
