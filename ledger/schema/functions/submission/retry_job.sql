-- Runs an ended job again, inside the caller's transaction: weir_retry() with the columns of submit_many(). The only body
-- of this rule.
-- Errors: as weir_retry.
-- Cost: as weir_retry.
-- Callers: weir_retry; ledger/src/reservation/retry.rs.
CREATE OR REPLACE FUNCTION retry_job(job bigint)
RETURNS TABLE (outcome text, job_id bigint, reserved bigint, added bigint, drawn bigint, full_spans text[], max_waiting int,
               spans text[], starts timestamptz[], ends timestamptz[], limits bigint[], ceilings bigint[], used_in bigint[],
               reserved_in bigint[], from_grants bigint, granted bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    s weir_jobs;
    ended river_job;
BEGIN
    SELECT * INTO s FROM weir_jobs b WHERE b.job_id = job AND b.submitted_at IS NOT NULL;
    PERFORM FROM lock_accounts(ARRAY[s.holder], ARRAY[s.event_type], false);
    -- Ended by another client, and not settled yet.
    IF EXISTS (SELECT FROM quota_reservations r JOIN river_job j ON j.id = r.job_id
               WHERE r.job_id = job AND j.finalized_at IS NOT NULL) THEN
        PERFORM settle_one(job, NULL, NULL, NULL);
    END IF;
    SELECT * INTO ended FROM river_job j WHERE j.id = s.job_id FOR NO KEY UPDATE;
    IF NOT FOUND OR s.user_id IS NOT NULL AND NOT EXISTS (SELECT FROM users u WHERE u.id = s.user_id) THEN
        outcome := 'not_found';
        RETURN NEXT;
        RETURN;
    ELSIF (ended.state IN ('cancelled', 'discarded')) IS NOT TRUE
          OR EXISTS (SELECT FROM usage_events u WHERE u.job_id = job)
          OR EXISTS (SELECT FROM weir_jobs r WHERE r.job_id = job AND r.ended_at IS NULL) THEN
        outcome := 'not_failed';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT m.outcome, m.job_id, m.reserved, m.added, m.drawn, m.full_spans, m.max_waiting, m.spans, m.starts, m.ends, m.limits,
           m.ceilings, m.used_in, m.reserved_in, m.from_grants, m.granted
    INTO outcome, job_id, reserved, added, drawn, full_spans, max_waiting, spans, starts, ends, limits, ceilings, used_in,
         reserved_in, from_grants, granted
    FROM submit_many(
        ARRAY[ROW(s.holder, s.user_id, NULL, '', s.event_type, ended.kind, 1, '{}', '{}', 1, s.reserved_amount, NULL, NULL,
                  NULL, ended.unique_key, NULL)::submission],
        'none', false) m;
    IF outcome IN ('admitted', 'parked') THEN
        job_id := job;
        UPDATE weir_jobs b SET deleted_at = NULL WHERE b.job_id = job;
        -- As River's JobRetry. A cancellation, an expiry and a reason were those of the earlier attempts.
        UPDATE river_job j
        SET state = 'available', finalized_at = NULL, scheduled_at = clock_timestamp(),
            max_attempts = least(greatest(j.max_attempts, j.attempt + 1), 32767),
            metadata = j.metadata - ARRAY['cancel_attempted_at', 'weir:expired', 'weir:expires_in', 'weir:reason',
                                          'weir:reason_attempt']
        WHERE j.id = job;
        SELECT l.outcome INTO outcome
        FROM admit_late(job, NULL, s.holder, s.user_id, NULL, s.event_type, NULL, '{}') l;
        IF outcome = 'fenced_out' THEN
            RAISE serialization_failure USING
                MESSAGE = format('another program has just changed job %s', job), HINT = 'retry the transaction';
        END IF;
    END IF;
    RETURN NEXT;
END
$$;
