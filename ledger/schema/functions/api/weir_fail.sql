-- Records a failed attempt as River does, inside the caller's transaction, and frees its slot.
--
-- error: the message, cut to 10 000 characters. retry_at: when to try again; null: by the service's retry policy.
-- Returns outcome retry, discarded (no attempts left), cancelled, or fenced_out (nothing is changed).
-- Errors: 22023 for retry_at beyond 366 days, 25000 for another isolation level than READ COMMITTED.
-- Callers: other languages, as role weir_worker.
CREATE OR REPLACE FUNCTION weir_fail(job_id bigint, attempt int, error text, retry_at timestamptz DEFAULT NULL, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    IF EXISTS (SELECT FROM river_job j WHERE j.id = weir_fail.job_id AND NOT is_service_kind(j.kind)) THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    outcome := fail_attempt(weir_fail.job_id, weir_fail.attempt, weir_fail.error, weir_fail.retry_at);
END
$$;

COMMENT ON FUNCTION weir_fail IS
    'records a failed attempt as River does and gives its slot on; outcome: retry, discarded, cancelled, fenced_out';
