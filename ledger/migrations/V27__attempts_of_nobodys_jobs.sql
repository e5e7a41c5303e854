-- A job that is nobody's has no reservation: a worker in any language claims it, and its attempt is under way all the same.

-- Whether this attempt at a job without a holder is under way.
CREATE FUNCTION is_nobodys_attempt(job_id bigint, attempt int) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT 1 FROM quota_reservations q WHERE q.job_id = is_nobodys_attempt.job_id)
       AND EXISTS (SELECT 1 FROM river_job j
                   WHERE j.id = is_nobodys_attempt.job_id AND j.attempt = is_nobodys_attempt.attempt
                     AND (j.state = 'running') IS TRUE)
$$;

CREATE OR REPLACE FUNCTION weir_progress(job_id bigint, attempt int, fraction double precision, message text DEFAULT NULL,
                              OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    books CONSTANT text := coalesce(current_setting('weir.books', true), '');
BEGIN
    IF fraction IS NULL OR fraction NOT BETWEEN 0 AND 1 OR octet_length(message) > 1000 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'a progress has a fraction from 0 to 1, and a message of at most 1000 bytes';
    END IF;
    PERFORM set_config('weir.books', 'kept', true);
    UPDATE quota_reservations r
    SET progress = jsonb_build_object('attempt', attempt, 'fraction', fraction, 'message', weir_progress.message)
    WHERE r.job_id = weir_progress.job_id
      AND EXISTS (SELECT 1 FROM river_job j
                  WHERE j.id = weir_progress.job_id AND j.attempt = weir_progress.attempt AND (j.state = 'running') IS TRUE);
    outcome := CASE WHEN FOUND OR is_nobodys_attempt(weir_progress.job_id, weir_progress.attempt) THEN 'done'
                    ELSE 'fenced_out' END;
    PERFORM set_config('weir.books', books, true);
END
$$;

-- A `user_id` that is no text is nobody's, as Weir's own workers have it.
CREATE OR REPLACE FUNCTION weir_claim(queue text, worker text, most int DEFAULT 1)
RETURNS TABLE (job_id bigint, attempt int, kind text, args jsonb)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
BEGIN
    IF most IS NULL OR most NOT BETWEEN 1 AND 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a worker claims from 1 to 1000 jobs at once';
    END IF;
    IF worker IS NULL OR worker !~ '^[[:alnum:]][[:alnum:]._-]{0,99}$' OR worker LIKE 'weir\_%' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'a worker has a name of 1 to 100 letters, digits, ".", "_" and "-", which does not begin with weir_';
    END IF;
    RETURN QUERY
    WITH picked AS MATERIALIZED (
        SELECT j.id
        FROM river_job j
        WHERE j.state = 'available' AND j.queue = weir_claim.queue AND j.scheduled_at <= clock_timestamp()
          AND NOT EXISTS (SELECT 1 FROM river_queue q
                          WHERE q.name IN (weir_claim.queue, '*') AND q.paused_at IS NOT NULL)
          AND ((jsonb_typeof(j.args -> 'user_id') IS DISTINCT FROM 'string' OR j.args ->> 'user_id' = '')
                   AND NOT EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id)
               OR EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id AND r.admitted_at IS NOT NULL)
               OR NOT (SELECT s.counts_slots FROM weir_settings s))
        ORDER BY j.priority, j.scheduled_at, j.id
        LIMIT most
        FOR UPDATE SKIP LOCKED
    )
    UPDATE river_job j
    SET state = 'running', attempt = j.attempt + 1, attempted_at = clock_timestamp(),
        attempted_by = (coalesce(j.attempted_by, '{}'))[greatest(coalesce(cardinality(j.attempted_by), 0) - 98, 1):] || worker
    FROM picked p
    WHERE j.id = p.id
    RETURNING j.id, j.attempt::int, j.kind, j.args;
END
$$;

-- The windows that a reservation is counted in, whichever it is now: what is taken of them, and the limits of today.
CREATE OR REPLACE FUNCTION windows_in_force(r quota_reservations)
RETURNS TABLE (span text, period_start timestamptz, reset_at timestamptz, used bigint, reserved bigint, most bigint,
               from_grants bigint, ceiling bigint)
LANGUAGE sql STABLE AS $$
    SELECT w.span, w.period_start,
           (SELECT p.period_end FROM billing_period(l.anchor, w.period_start) p WHERE w.span = 'month'),
           -- A short window is forgotten when it is long over and nothing is reserved in it.
           coalesce(b.used, CASE WHEN w.span <> 'month' AND w.period_start < now() - interval '2 days' THEN (
               SELECT sum(c.amount)::bigint FROM charged_amounts c
               WHERE c.user_id = r.user_id AND c.event_type = r.event_type AND c.span = w.span
                 AND c.period_start = w.period_start
           ) END, 0), coalesce(b.reserved, 0),
           CASE w.span WHEN 'month' THEN l.month WHEN 'day' THEN l.day WHEN 'hour' THEN l.hour ELSE l.minute END,
           coalesce(b.from_grants, 0),
           CASE w.span WHEN 'month' THEN l.month_ceiling WHEN 'day' THEN l.day_ceiling WHEN 'hour' THEN l.hour_ceiling
                       ELSE l.minute_ceiling END
    FROM windows_of(r.period_start, r.windows, r.created_at) w
    CROSS JOIN limits_of(r.user_id, r.event_type, clock_timestamp()) l
    LEFT JOIN quota_balances b
        ON b.user_id = r.user_id AND b.event_type = r.event_type AND b.span = w.span AND b.period_start = w.period_start
    WHERE r.user_id IS NOT NULL
$$;

-- As before, for nobody's jobs too; and a short window that was forgotten is made again with all that was used in it.
CREATE OR REPLACE FUNCTION weir_extend(job_id bigint, attempt int, more bigint, OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    books CONSTANT text := coalesce(current_setting('weir.books', true), '');
    locked record;
    r quota_reservations;
    granted bigint;
    beyond bigint;
    drawn bigint;
    has_room boolean;
BEGIN
    PERFORM need_read_committed('weir_extend');
    IF more IS NULL OR more NOT BETWEEN 1 AND 1000000000000000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'more must be from 1 to 1000000000000000';
    END IF;
    SELECT * INTO locked FROM lock_holder_of(weir_extend.job_id);
    SELECT q.* INTO r
    FROM quota_reservations q JOIN river_job j ON j.id = q.job_id
    WHERE q.job_id = weir_extend.job_id AND q.holder = locked.holder AND j.attempt = weir_extend.attempt
      AND ((j.state = 'running') IS TRUE
           OR (j.state = 'pending') IS TRUE
              AND EXISTS (SELECT 1 FROM outstanding_attempts o
                          WHERE o.job_id = j.id AND o.claim = claim_of(j.attempt, j.attempted_by)))
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := CASE WHEN is_nobodys_attempt(weir_extend.job_id, weir_extend.attempt) THEN 'extended'
                        ELSE 'fenced_out' END;
        RETURN;
    END IF;
    SELECT coalesce(sum(g.amount), 0) INTO granted
    FROM holders h
    CROSS JOIN LATERAL grants_left(h.user_id, h.event_type, clock_timestamp()) g
    WHERE h.holder = r.holder AND h.event_type = r.event_type AND h.has_grants;
    -- What the month has no room for, grants pay, and what they have not is overage.
    SELECT coalesce(bool_and(w.most IS NULL OR more
                             <= greatest(most_of(w.most, w.ceiling)::numeric - (w.used::numeric + w.reserved - w.from_grants), 0)
                                + CASE w.span WHEN 'month' THEN granted ELSE 0 END), true),
           coalesce(max(greatest(more - greatest(w.most::numeric - (w.used::numeric + w.reserved - w.from_grants), 0), 0))
                    FILTER (WHERE w.span = 'month' AND w.most IS NOT NULL), 0),
           (jsonb_agg(quota_json(w.used, w.reserved, w.most, w.reset_at, w.from_grants, granted, w.ceiling))
            FILTER (WHERE w.span = 'month')) -> 0
    INTO has_room, beyond, quota
    FROM windows_in_force(r) w;
    IF NOT has_room THEN
        outcome := 'over_quota';
        RETURN;
    END IF;
    outcome := 'extended';
    drawn := least(beyond, granted);
    PERFORM set_config('weir.books', 'kept', true);
    UPDATE quota_reservations q
    SET reserved_amount = q.reserved_amount + more, from_grants = q.from_grants + drawn, overage = q.overage + beyond - drawn
    WHERE q.job_id = r.job_id AND r.user_id IS NOT NULL;
    UPDATE submissions s SET reserved_amount = s.reserved_amount + more
    WHERE s.job_id = r.job_id AND r.user_id IS NOT NULL;
    INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, used, reserved, granted_limit)
    SELECT r.user_id, r.event_type, w.span, w.period_start, w.used, more, coalesce(most_of(w.most, w.ceiling), 9223372036854775807)
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
    PERFORM set_config('weir.books', books, true);
END
$$;
