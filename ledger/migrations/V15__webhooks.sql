-- Events out. What is to be told becomes River jobs in the transaction of what it tells, one for each webhook that wants it, so
-- that none is lost and none tells what was rolled back. Without a webhook, a statement pays for one look into an empty table.

CREATE TABLE webhooks (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    url text NOT NULL CHECK (octet_length(url) BETWEEN 1 AND 2000),
    events text[] NOT NULL CHECK (cardinality(events) > 0 AND events <@ ARRAY[
        'job.completed', 'job.failed', 'job.cancelled', 'quota.threshold', 'quota.renewed', 'plan.changed']),
    thresholds smallint[] NOT NULL DEFAULT '{80,100}'
        CHECK (0 < ALL (thresholds) AND cardinality(thresholds) BETWEEN 1 AND 20),
    secret text,
    previous_secret text,
    previous_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at timestamptz,
    disabled_because text,
    removed_at timestamptz,
    CHECK (secret IS NOT NULL OR removed_at IS NOT NULL),
    CHECK ((previous_secret IS NULL) = (previous_until IS NULL)),
    CHECK ((disabled_at IS NULL) = (disabled_because IS NULL))
);
COMMENT ON TABLE webhooks IS 'who is told what; the secrets sign, so they have to be here as they are';
COMMENT ON COLUMN webhooks.thresholds IS 'percents of a limit that quota.threshold is told at';
COMMENT ON COLUMN webhooks.previous_until IS 'until when the secret before signs besides';
COMMENT ON COLUMN webhooks.removed_at IS 'the row outlives it for what was told meanwhile';
CREATE UNIQUE INDEX webhooks_url ON webhooks (url) WHERE removed_at IS NULL;

-- Every threshold of a window is reached once, whoever raises what is used at the same time.
CREATE TABLE quota_thresholds (
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    span text NOT NULL,
    period_start timestamptz NOT NULL,
    percent smallint NOT NULL,
    used bigint NOT NULL,
    most bigint NOT NULL,
    ends_at timestamptz NOT NULL,
    reached_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, event_type, span, period_start, percent)
);
COMMENT ON TABLE quota_thresholds IS 'thresholds of windows that are not over, as they were told';
COMMENT ON COLUMN quota_thresholds.ends_at IS 'when the window is over: its rows go, and quota.renewed is told';
CREATE INDEX quota_thresholds_ending ON quota_thresholds (ends_at);

-- Each webhook has a queue of its own, so that a slow receiver is worked at its own pace and delays nobody.
CREATE FUNCTION webhook_queue(webhook uuid) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT 'weir_webhook_' || replace(webhook::text, '-', '')
$$;

-- A moment as JSON has it.
CREATE FUNCTION utc_text(at timestamptz) RETURNS text LANGUAGE sql STABLE STRICT AS $$
    SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- The text that names a holder, or its id.
CREATE FUNCTION subject_of(of_user uuid) RETURNS text LANGUAGE sql STABLE STRICT AS $$
    SELECT coalesce((SELECT u.subject FROM users u WHERE u.id = of_user), of_user::text)
$$;

-- Deliveries to webhooks. The first attempt of each is followed by nine, over three days. What is sent is kept as the text that
-- is signed: as JSON, each of its members would be indexed with the job's arguments, again at every change of state.
CREATE FUNCTION deliver(webhooks_told uuid[], of_holders uuid[], events jsonb[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    told record;
BEGIN
    FOR told IN
        WITH inserted AS (
            INSERT INTO river_job (args, kind, max_attempts, metadata, priority, queue, state, scheduled_at, tags)
            SELECT jsonb_strip_nulls(jsonb_build_object(
                       'webhook', d.webhook, 'holder', d.holder, 'event', d.event ->> 'id', 'body', d.event::text)),
                   'weir:webhook', 10, '{}', 1, webhook_queue(d.webhook), 'available', now(), '{}'
            FROM unnest(webhooks_told, of_holders, events) AS d (webhook, holder, event)
            RETURNING queue
        )
        SELECT DISTINCT queue FROM inserted
    LOOP
        PERFORM pg_notify(river_channel('river_insert'), json_build_object('queue', told.queue)::text);
    END LOOP;
END
$$;

-- Tells every webhook that wants it. An event has one id, whoever is told it and however often. Of a threshold, the percent.
CREATE FUNCTION tell(types text[], of_holders uuid[], details jsonb[], percents smallint[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    told record;
BEGIN
    WITH events AS MATERIALIZED (
        SELECT e.type, e.holder, e.percent,
               jsonb_build_object('id', 'evt_' || replace(gen_random_uuid()::text, '-', ''), 'type', e.type,
                                  'timestamp', utc_text(clock_timestamp()), 'data', e.data) AS event
        FROM unnest(types, of_holders, details, percents) AS e (type, holder, data, percent)
    )
    SELECT array_agg(w.id) AS webhooks, array_agg(e.holder) AS holders, array_agg(e.event) AS events INTO told
    FROM events e
    JOIN webhooks w ON e.type = ANY (w.events) AND w.disabled_at IS NULL AND w.removed_at IS NULL
        AND (e.percent IS NULL OR e.percent = ANY (w.thresholds));
    IF told.webhooks IS NOT NULL THEN
        PERFORM deliver(told.webhooks, told.holders, told.events);
    END IF;
END
$$;

-- A job is at its end when its reservation is taken out and River says so, whoever does it: a worker's settlement in any
-- language, a cancel, or reconciliation after another River client. What is charged is what the settlement charges.
CREATE FUNCTION tell_job_ends() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    ended record;
BEGIN
    IF NOT EXISTS (
        SELECT FROM webhooks w
        WHERE w.events && ARRAY['job.completed', 'job.failed', 'job.cancelled']
          AND w.disabled_at IS NULL AND w.removed_at IS NULL
    ) THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(j.type ORDER BY o.job_id) AS types, array_agg(o.holder ORDER BY o.job_id) AS holders,
           array_agg(jsonb_strip_nulls(jsonb_build_object(
               'job_id', o.job_id, 'subject', subject_of(o.user_id), 'holder', o.holder,
               'service', (SELECT s.name FROM weir_services s WHERE s.kind = j.kind ORDER BY s.name LIMIT 1),
               'kind', j.kind, 'meter', o.event_type, 'reserved', o.reserved_amount,
               'used', CASE WHEN j.type = 'job.completed' AND o.user_id IS NOT NULL AND o.period_start IS NOT NULL
                            THEN least(greatest(coalesce(j.used, o.reserved_amount), 0), o.reserved_amount) ELSE 0 END,
               'attempts', j.attempt, 'error', j.error, 'reason', j.reason, 'request_id', j.request_id,
               'submitted_at', utc_text(j.created_at), 'finished_at', utc_text(j.finalized_at)
           )) ORDER BY o.job_id) AS details
    INTO ended
    FROM old_rows o
    CROSS JOIN LATERAL (
        SELECT k.kind, k.attempt, k.created_at, k.finalized_at,
               CASE k.state WHEN 'completed' THEN 'job.completed' WHEN 'cancelled' THEN 'job.cancelled'
                            ELSE 'job.failed' END AS type,
               CASE WHEN jsonb_typeof(k.metadata -> 'weir:used') = 'number'
                    THEN least(greatest(trunc((k.metadata ->> 'weir:used')::numeric), 0), 9223372036854775807)::bigint
               END AS used,
               CASE WHEN k.state = 'discarded'
                    THEN left(k.errors[array_upper(k.errors, 1)] ->> 'error', 1000) END AS error,
               left(k.metadata ->> 'weir:reason', 1000) AS reason, k.metadata ->> 'weir:request_id' AS request_id
        FROM river_job k WHERE k.id = o.job_id AND k.finalized_at IS NOT NULL
        OFFSET 0
    ) j;
    IF ended.types IS NOT NULL THEN
        PERFORM tell(ended.types, ended.holders, ended.details);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_job_ends AFTER DELETE ON quota_reservations REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
    EXECUTE FUNCTION tell_job_ends();

-- The months and days of a user and meter that are not over, with their limits of now; those without a limit are left out.
CREATE FUNCTION windows_with_limits(of_user uuid, meter text, moment timestamptz)
RETURNS TABLE (span text, period_start timestamptz, ends_at timestamptz, most bigint, used bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    -- A plan without limits for the meter is a fault of the catalogue, and nothing to fail for here.
    IF NOT EXISTS (SELECT FROM plan_of(of_user, meter)) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT w.span, w.first, w.past, w.most, coalesce(b.used, 0)
    FROM limits_of(of_user, meter, moment) l
    CROSS JOIN LATERAL (
        SELECT 'month' AS span, l.month AS most, p.period_start AS first, p.period_end AS past
        FROM billing_period(l.anchor, moment) p
        UNION ALL
        SELECT 'day', l.day, date_trunc('day', moment, 'UTC'), date_trunc('day', moment, 'UTC') + interval '24 hours'
    ) w
    LEFT JOIN quota_balances b
        ON b.user_id = of_user AND b.event_type = meter AND b.span = w.span AND b.period_start = w.first
    WHERE w.most > 0;
END
$$;

-- Tells the thresholds that a user has reached and that were not told. Hours and minutes are no quota that anybody plans by.
CREATE FUNCTION tell_thresholds(of_user uuid, meter text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    reached record;
BEGIN
    WITH thresholds AS (
        SELECT DISTINCT t.percent
        FROM webhooks w CROSS JOIN unnest(w.thresholds) AS t (percent)
        WHERE w.events && ARRAY['quota.threshold', 'quota.renewed'] AND w.disabled_at IS NULL AND w.removed_at IS NULL
    ), first_time AS (
        INSERT INTO quota_thresholds AS q (user_id, event_type, span, period_start, percent, used, most, ends_at)
        SELECT of_user, meter, w.span, w.period_start, t.percent, w.used, w.most, w.ends_at
        FROM windows_with_limits(of_user, meter, clock_timestamp()) w
        JOIN thresholds t ON w.used::numeric * 100 >= w.most::numeric * t.percent
        ORDER BY w.span, t.percent
        ON CONFLICT DO NOTHING
        RETURNING *
    )
    SELECT array_agg('quota.threshold'::text) AS types, array_agg(of_user) AS holders,
           array_agg(n.percent ORDER BY n.span, n.percent) AS percents,
           array_agg(jsonb_build_object(
               'subject', subject_of(of_user), 'holder', of_user, 'meter', meter, 'window', n.span,
               'percent', n.percent, 'used', n.used, 'limit', n.most,
               'period_start', utc_text(n.period_start), 'reset_at', utc_text(n.ends_at)
           ) ORDER BY n.span, n.percent) AS details
    INTO reached
    FROM first_time n;
    IF reached.types IS NOT NULL THEN
        PERFORM tell(reached.types, reached.holders, reached.details, reached.percents);
    END IF;
END
$$;

-- What is used grows with every settlement, and hardly anybody wants to hear of it: who looks for that once a statement
-- notes it, and the rows go by the note.
CREATE FUNCTION note_who_wants_thresholds() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM set_config('weir.tells', CASE WHEN EXISTS (
        SELECT FROM webhooks w
        WHERE w.events && ARRAY['quota.threshold', 'quota.renewed'] AND w.disabled_at IS NULL AND w.removed_at IS NULL
    ) THEN 'thresholds' ELSE '' END, true);
    RETURN NULL;
END
$$;
CREATE TRIGGER note_who_wants_thresholds BEFORE UPDATE OF used ON quota_balances FOR EACH STATEMENT
    EXECUTE FUNCTION note_who_wants_thresholds();

CREATE FUNCTION tell_usage() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM tell_thresholds(NEW.user_id, NEW.event_type);
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_usage AFTER UPDATE OF used ON quota_balances FOR EACH ROW
    WHEN (NEW.used > OLD.used AND NEW.span IN ('month', 'day') AND current_setting('weir.tells', true) = 'thresholds')
    EXECUTE FUNCTION tell_usage();
-- Submissions make balances, with nothing used.
CREATE TRIGGER tell_first_usage AFTER INSERT ON quota_balances FOR EACH ROW
    WHEN (NEW.used > 0 AND NEW.span IN ('month', 'day'))
    EXECUTE FUNCTION tell_usage();

-- A lower limit is reached by what was used before.
CREATE FUNCTION tell_own_limits() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM tell_thresholds(OLD.user_id, OLD.event_type);
    ELSE
        PERFORM tell_thresholds(NEW.user_id, NEW.event_type);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_own_limits AFTER INSERT OR UPDATE OR DELETE ON limit_overrides FOR EACH ROW
    EXECUTE FUNCTION tell_own_limits();

-- A plan counts from its moment on, and is told when it is written: at once, or within about a second of a scheduled one.
CREATE FUNCTION tell_plan() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    default_plan uuid;
    before uuid;
    after uuid;
BEGIN
    IF NOT EXISTS (SELECT FROM webhooks w WHERE w.disabled_at IS NULL AND w.removed_at IS NULL) THEN
        RETURN NULL;
    END IF;
    SELECT p.id INTO default_plan FROM subscription_plans p WHERE p.is_default;
    before := CASE WHEN TG_OP = 'UPDATE' AND OLD.status = 'active' THEN OLD.plan_id ELSE default_plan END;
    after := CASE WHEN NEW.status = 'active' THEN NEW.plan_id ELSE default_plan END;
    IF before IS NOT DISTINCT FROM after THEN
        RETURN NULL;
    END IF;
    PERFORM tell(ARRAY['plan.changed'], ARRAY[NEW.user_id], ARRAY[jsonb_build_object(
        'subject', subject_of(NEW.user_id), 'holder', NEW.user_id,
        'before', (SELECT p.tier FROM subscription_plans p WHERE p.id = before),
        'plan', (SELECT p.tier FROM subscription_plans p WHERE p.id = after))]);
    PERFORM tell_thresholds(NEW.user_id, b.event_type)
    FROM (SELECT DISTINCT k.event_type FROM quota_balances k WHERE k.user_id = NEW.user_id ORDER BY 1) b;
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_plan AFTER INSERT OR UPDATE OF plan_id, status ON user_subscriptions FOR EACH ROW EXECUTE FUNCTION tell_plan();

-- Windows that are over and of which a threshold was told: that they are renewed. Whoever does the duties calls this, one at a
-- time. Returns how many rows went, at most about a thousand.
CREATE FUNCTION tell_renewals() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    ended record;
BEGIN
    -- The tests of an index that is mostly ahead of now: nothing more when nothing is over.
    IF NOT EXISTS (SELECT FROM quota_thresholds q WHERE q.ends_at <= now())
       OR NOT pg_try_advisory_xact_lock('quota_thresholds'::regclass::oid::bigint) THEN
        RETURN 0;
    END IF;
    WITH due AS MATERIALIZED (
        SELECT DISTINCT q.user_id, q.event_type, q.span, q.period_start
        FROM (SELECT * FROM quota_thresholds t WHERE t.ends_at <= now() ORDER BY t.ends_at LIMIT 1000) q
    ), gone AS (
        DELETE FROM quota_thresholds q USING due d
        WHERE q.user_id = d.user_id AND q.event_type = d.event_type AND q.span = d.span AND q.period_start = d.period_start
        RETURNING q.user_id, q.event_type, q.span, q.period_start
    ), windows AS (
        SELECT g.user_id, g.event_type, g.span, g.period_start, count(*) AS n FROM gone g GROUP BY 1, 2, 3, 4
    )
    SELECT coalesce(sum(w.n), 0)::bigint AS n,
           array_agg('quota.renewed'::text) FILTER (WHERE l.span IS NOT NULL) AS types,
           array_agg(w.user_id) FILTER (WHERE l.span IS NOT NULL) AS holders,
           array_agg(jsonb_build_object(
               'subject', subject_of(w.user_id), 'holder', w.user_id, 'meter', w.event_type, 'window', w.span,
               'used', l.used, 'limit', l.most, 'period_start', utc_text(l.period_start),
               'reset_at', utc_text(l.ends_at))) FILTER (WHERE l.span IS NOT NULL) AS details
    INTO ended
    FROM windows w
    LEFT JOIN LATERAL (
        SELECT * FROM windows_with_limits(w.user_id, w.event_type, clock_timestamp()) k WHERE k.span = w.span OFFSET 0
    ) l ON true;
    IF ended.types IS NOT NULL THEN
        PERFORM tell(ended.types, ended.holders, ended.details);
    END IF;
    RETURN ended.n;
END
$$;
