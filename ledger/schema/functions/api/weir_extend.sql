-- Reserves more for a running job in the windows of its reservation. Usage above the limit draws on grants first, and
-- then counts as overage up to the ceiling.
--
-- | parameter | |
-- |---|---|
-- | `more` | 1 to 10^15 |
-- | `created_at` | when the job was created, as `weir_claim` returned it. Another job with this id is fenced out. Default: not checked |
--
-- | outcome | |
-- |---|---|
-- | `extended` | `quota` is the new quota |
-- | `over_quota`, `too_large` | as for `weir_submit`. Nothing was changed |
-- | `cancelled` | the job's cancellation was requested, so the attempt should end. Nothing was changed |
-- | `fenced_out` | this attempt is no longer the current one. Nothing was changed |
--
-- Errors: 22023 for invalid arguments; 25000 for another isolation level than READ COMMITTED; P0001 when the user's
-- plan has no limits for the job's meter.
--
-- Cost: one lookup per window. It locks the user's account until the transaction ends: use a short transaction.
--
-- Callers: other languages, as role weir_worker; ledger/src/attempts/outstanding.rs. The one body of this rule.
CREATE OR REPLACE FUNCTION weir_extend(job_id bigint, attempt int, more bigint, created_at timestamptz DEFAULT NULL,
                            OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    locked record;
    r quota_reservations;
    account record;
    excess bigint;
    drawn bigint;
BEGIN
    PERFORM require_read_committed('weir_extend');
    IF more IS NULL OR more NOT BETWEEN 1 AND 1000000000000000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'more must be from 1 to 1000000000000000';
    END IF;
    IF is_another_job(weir_extend.job_id, weir_extend.created_at) THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    SELECT * INTO locked FROM lock_holder_of_job(weir_extend.job_id);
    SELECT q.* INTO r
    FROM quota_reservations q JOIN river_job j ON j.id = q.job_id
    WHERE q.job_id = weir_extend.job_id AND q.holder = locked.holder AND j.attempt = weir_extend.attempt
      AND is_service_kind(j.kind)
      AND ((j.state = 'running') IS TRUE
           OR (j.state = 'pending') IS TRUE
              AND EXISTS (SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by)))
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := CASE WHEN NOT is_attempt_without_holder(weir_extend.job_id, weir_extend.attempt) THEN 'fenced_out'
                        WHEN is_cancelled(weir_extend.job_id) THEN 'cancelled'
                        ELSE 'extended' END;
        RETURN;
    END IF;
    IF is_cancelled(r.job_id) THEN
        outcome := 'cancelled';
        RETURN;
    ELSIF r.user_id IS NULL THEN
        -- A client address has no quota.
        outcome := 'extended';
        RETURN;
    END IF;
    -- The windows that the reservation counts in, even if others are current now.
    SELECT clock.at, a.* INTO account
    FROM (SELECT * FROM holders k WHERE k.holder = r.holder AND k.event_type = r.event_type
          ORDER BY k.generation DESC LIMIT 1) h
    CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
    LEFT JOIN LATERAL account_of(h.user_id, h.event_type, h.has_grants, clock.at, r.period_start, r.windows, r.created_at) a
        ON true;
    IF account.slots IS NULL THEN
        PERFORM raise_no_limits(r.event_type);
    END IF;
    quota := quota_json(account.used, account.reserved, account.monthly_limit, account.period_end, account.from_grants,
                        account.granted, account.monthly_ceiling);
    IF more > account.room THEN
        outcome := 'over_quota';
        RETURN;
    ELSIF more > account.capacity THEN
        outcome := 'too_large';
        RETURN;
    END IF;
    -- The part beyond the plan's month: from grants first, and the rest is overage.
    excess := coalesce(greatest(more - greatest(account.plan_left, 0), 0), 0);
    drawn := least(excess, account.granted);
    outcome := 'extended';
    UPDATE weir_jobs q
    SET reserved_amount = q.reserved_amount + more, from_grants = q.from_grants + drawn, overage = q.overage + excess - drawn
    WHERE q.job_id = r.job_id;
    PERFORM reserve_in_windows(r.user_id, r.event_type, more, account.spans, account.starts, account.limits,
                               account.ceilings, account.used_in);
    IF drawn > 0 THEN
        PERFORM draw_grants(r.user_id, r.event_type, r.job_id, drawn, account.at, r.period_start);
    END IF;
    quota := quota_json(account.used, account.reserved + more, account.monthly_limit, account.period_end,
                        account.from_grants + drawn, account.granted - drawn, account.monthly_ceiling);
END
$$;

COMMENT ON FUNCTION weir_extend IS
    'reserves more for a running job; outcome: extended, over_quota, too_large, cancelled, fenced_out';
