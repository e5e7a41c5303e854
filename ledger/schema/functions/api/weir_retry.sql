-- Runs an ended job again, inside the caller's transaction: one that failed, expired or was cancelled. It reserves quota
-- as a new submission would, and keeps its id, its attempts and their errors. If it has no attempts left, it gets one
-- more. It no longer expires.
--
-- | outcome | |
-- |---|---|
-- | `admitted` | the job has a slot. Workers find it within 50 ms of your commit |
-- | `parked` | the job waits for a slot |
-- | `not_found` | Weir knows no such job, River has deleted it, or its user was deleted |
-- | `not_failed` | the job is unfinished, or it was charged. Nothing was written |
-- | `folded` | the user has an unfinished job that equals this one by `unique_by`. Nothing was written |
-- | `over_quota`, `too_large`, `too_many_waiting` | as for `weir_submit`. Nothing was written |
--
-- Errors: 25000 for another isolation level than READ COMMITTED. P0001 as weir_submit.
--
-- Cost: as a submission. It locks the user's account for the job's meter until the transaction ends.
--
-- Callers: other languages, as role weir_submitter.
CREATE OR REPLACE FUNCTION weir_retry(job_id bigint, OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM require_read_committed('weir_retry');
    SELECT r.outcome,
           quota_of_submission(r.outcome, r.added, r.drawn, r.full_spans, r.spans, r.ends, r.limits, r.ceilings, r.used_in,
                               r.reserved_in, r.from_grants, r.granted)
    INTO outcome, quota
    FROM retry_job(weir_retry.job_id) r;
END
$$;

COMMENT ON FUNCTION weir_retry IS
    'runs a failed, expired or cancelled job again; outcome: admitted, parked, not_found, not_failed, folded, over_quota, too_large, too_many_waiting';
