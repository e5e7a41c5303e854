-- Reserves more for a running job in the windows of its reservation. Usage above the limit draws on grants first, and
-- then counts as overage up to the ceiling.
--
-- | parameter | |
-- |---|---|
-- | `more` | 1 to 10^15 |
--
-- | outcome | |
-- |---|---|
-- | `extended` | `quota` is the new quota |
-- | `over_quota`, `too_large` | as for `weir_submit`. Nothing was changed |
-- | `fenced_out` | this attempt is no longer the current one. Nothing was changed |
--
-- Errors: 22023 for invalid arguments; 25000 for another isolation level than READ COMMITTED.
--
-- Cost: one lookup per window. It locks the user's account until the transaction ends: use a short transaction.
--
-- Callers: other languages, as role weir_worker. Rust decides the same in ledger/src/attempts/outstanding.rs.
CREATE OR REPLACE FUNCTION weir_extend(job_id bigint, attempt int, more bigint, OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- The counters are updated here and not by the triggers, until the caller goes on. A function of an ordinary owner
    -- cannot have the setting itself.
    counters CONSTANT text := coalesce(current_setting('weir.counters', true), '');
    locked record;
    r quota_reservations;
    granted bigint;
    beyond bigint;
    drawn bigint;
    has_room boolean;
    fits boolean;
BEGIN
    PERFORM require_read_committed('weir_extend');
    IF more IS NULL OR more NOT BETWEEN 1 AND 1000000000000000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'more must be from 1 to 1000000000000000';
    END IF;
    SELECT * INTO locked FROM lock_holder_of_job(weir_extend.job_id);
    SELECT q.* INTO r
    FROM quota_reservations q JOIN river_job j ON j.id = q.job_id
    WHERE q.job_id = weir_extend.job_id AND q.holder = locked.holder AND j.attempt = weir_extend.attempt
      AND is_service_kind(j.kind)
      AND ((j.state = 'running') IS TRUE
           OR (j.state = 'pending') IS TRUE
              AND EXISTS (SELECT 1 FROM outstanding_attempts o
                          WHERE o.job_id = j.id AND o.claim = claim_of(j.attempt, j.attempted_by)))
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := CASE WHEN is_attempt_without_holder(weir_extend.job_id, weir_extend.attempt) THEN 'extended'
                        ELSE 'fenced_out' END;
        RETURN;
    END IF;
    SELECT coalesce(sum(g.amount), 0) INTO granted
    FROM holders h
    CROSS JOIN LATERAL grants_left(h.user_id, h.event_type, clock_timestamp()) g
    WHERE h.holder = r.holder AND h.event_type = r.event_type AND h.has_grants;
    -- What the month has no room for, grants pay, and what they have not is overage.
    SELECT coalesce(bool_and(w.most IS NULL OR more
                             <= greatest(max_accepted(w.most, w.ceiling)::numeric - (w.used::numeric + w.reserved - w.from_grants), 0)
                                + CASE w.span WHEN 'month' THEN granted ELSE 0 END), true),
           coalesce(max(greatest(more - greatest(w.most::numeric - (w.used::numeric + w.reserved - w.from_grants), 0), 0))
                    FILTER (WHERE w.span = 'month' AND w.most IS NOT NULL), 0),
           (jsonb_agg(quota_json(w.used, w.reserved, w.most, w.reset_at, w.from_grants, granted, w.ceiling))
            FILTER (WHERE w.span = 'month')) -> 0,
           coalesce(bool_and(w.used::numeric + w.reserved + more <= 9223372036854775807), true)
    INTO has_room, beyond, quota, fits
    FROM windows_in_force(r) w;
    IF NOT has_room THEN
        outcome := 'over_quota';
        RETURN;
    END IF;
    IF NOT fits THEN
        outcome := 'too_large';
        RETURN;
    END IF;
    outcome := 'extended';
    drawn := least(beyond, granted);
    PERFORM set_config('weir.counters', 'kept', true);
    UPDATE quota_reservations q
    SET reserved_amount = q.reserved_amount + more, from_grants = q.from_grants + drawn, overage = q.overage + beyond - drawn
    WHERE q.job_id = r.job_id AND r.user_id IS NOT NULL;
    UPDATE submissions s SET reserved_amount = s.reserved_amount + more
    WHERE s.job_id = r.job_id AND r.user_id IS NOT NULL;
    INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, used, reserved, granted_limit)
    SELECT r.user_id, r.event_type, w.span, w.period_start, w.used, more, coalesce(max_accepted(w.most, w.ceiling), 9223372036854775807)
    FROM windows_in_force(r) w
    ON CONFLICT (user_id, event_type, span, period_start)
        DO UPDATE SET reserved = b.reserved + excluded.reserved,
            granted_limit = greatest(excluded.granted_limit, b.used + b.reserved - b.from_grants);
    IF drawn > 0 THEN
        -- After what it has drawn before.
        WITH draws AS (
            INSERT INTO grant_draws (job_id, position, grant_id, amount)
            SELECT r.job_id, d.n + g.n - 1, g.id, least(g.amount, drawn - g.before)
            FROM grants_left(r.user_id, r.event_type, clock_timestamp()) g
            CROSS JOIN (SELECT coalesce(max(o.position) + 1, 0) AS n FROM grant_draws o WHERE o.job_id = r.job_id) d
            WHERE g.before < drawn
            RETURNING grant_id, amount
        )
        UPDATE grants g SET reserved = g.reserved + d.amount FROM draws d WHERE g.id = d.grant_id;
        UPDATE quota_balances b SET from_grants = b.from_grants + drawn
        WHERE b.user_id = r.user_id AND b.event_type = r.event_type AND b.span = 'month'
          AND b.period_start = r.period_start;
    END IF;
    SELECT quota_json(w.used, w.reserved, w.most, w.reset_at, w.from_grants, granted - drawn, w.ceiling) INTO quota
    FROM windows_in_force(r) w WHERE w.span = 'month';
    PERFORM set_config('weir.counters', counters, true);
END
$$;

COMMENT ON FUNCTION weir_extend IS
    'reserves more for a running job; outcome: extended, over_quota, too_large, fenced_out';
