-- What the functions for other languages read: the account of a holder, as ledger/src/reservation reads it, and River's
-- unique keys.

-- JSON as Go writes it, by which River's clients make unique keys: keys in the order of their bytes, no spaces, numbers
-- in their shortest form.
CREATE FUNCTION go_json(value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET extra_float_digits = 1 AS $$
DECLARE
    literal text;
BEGIN
    CASE jsonb_typeof(value)
        WHEN 'object' THEN
            RETURN '{' || coalesce((
                SELECT string_agg(go_json(to_jsonb(m.key)) || ':' || go_json(m.value), ',' ORDER BY m.key COLLATE "C")
                FROM jsonb_each(value) m), '') || '}';
        WHEN 'array' THEN
            RETURN '[' || coalesce((
                SELECT string_agg(go_json(e.value), ',' ORDER BY e.n)
                FROM jsonb_array_elements(value) WITH ORDINALITY e (value, n)), '') || ']';
        WHEN 'string' THEN
            literal := replace(replace(replace(value::text, '<', '\u003c'), '>', '\u003e'), '&', '\u0026');
            RETURN replace(replace(literal, U&'\2028', '\u2028'), U&'\2029', '\u2029');
        WHEN 'number' THEN
            IF scale(value::numeric) = 0
               AND value::numeric BETWEEN -9223372036854775808 AND 18446744073709551615 THEN
                RETURN value::text;
            END IF;
            literal := (value::numeric::float8)::text;
            IF literal::numeric = 0 OR abs(literal::numeric) >= 1e-6 AND abs(literal::numeric) < 1e21 THEN
                RETURN trim_scale(literal::numeric)::text;
            END IF;
            RETURN regexp_replace(literal, 'e([+-])0(\d)$', 'e\1\2');
        ELSE
            RETURN value::text;
    END CASE;
END
$$;

-- River's unique key of a job by these members of its arguments; null where one of them is missing, or none is named.
CREATE FUNCTION unique_key_of(kind text, args jsonb, members text[]) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN cardinality(members) > 0 AND args ?& members THEN
        sha256(convert_to('&kind=' || kind || '&args='
            || go_json((SELECT jsonb_object_agg(m, args -> m) FROM unnest(members) AS m)), 'UTF8'))
    END
$$;

-- What a user may have of a meter at a moment: by the plan of the active subscription, or else the default one; limits of
-- the user's own count before the plan's. `anchor` is where its billing periods are counted from.
CREATE FUNCTION limits_of(of_user uuid, meter text, moment timestamptz)
RETURNS TABLE (tier text, lane text, slots int, own_slots int, max_waiting int, month bigint, day bigint, hour bigint,
               minute bigint, counted smallint, anchor timestamptz)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT p.tier::text, p.lane, coalesce(l.slots, no_limits_for(meter)), own.slots, p.max_waiting,
           nullif(coalesce(own.month, l.month), -1), nullif(coalesce(own.day, l.day), -1),
           nullif(coalesce(own.hour, l.hour), -1), nullif(coalesce(own.minute, l.minute), -1), l.counted,
           coalesce(s.current_period_start, timestamptz '2000-01-01 00:00:00+00')
    FROM (SELECT 1) AS one
    LEFT JOIN LATERAL (
        SELECT u.current_period_start, CASE WHEN u.next_plan_at <= moment THEN u.next_plan_id ELSE u.plan_id END AS plan_id
        FROM user_subscriptions u WHERE u.user_id = of_user AND u.status = 'active'
    ) s ON true
    JOIN subscription_plans p ON p.id = s.plan_id OR s.plan_id IS NULL AND p.is_default
    LEFT JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = meter
    LEFT JOIN limit_overrides own
        ON own.user_id = of_user AND own.event_type = meter AND (own.expires_at IS NULL OR own.expires_at > moment)
$$;

-- The grants of a user and meter of which something is left, in the order in which they are drawn on.
CREATE FUNCTION grants_left(of_user uuid, meter text, moment timestamptz)
RETURNS TABLE (id uuid, amount bigint, n bigint, before numeric)
LANGUAGE sql STABLE AS $$
    SELECT g.id, g.amount - g.reserved - g.used,
           row_number() OVER first_ends,
           sum(g.amount - g.reserved - g.used) OVER first_ends - (g.amount - g.reserved - g.used)
    FROM grants g
    WHERE g.user_id = of_user AND g.event_type = meter AND g.used < g.amount AND g.reserved + g.used < g.amount
      AND (g.expires_at IS NULL OR g.expires_at > moment)
    WINDOW first_ends AS (ORDER BY g.expires_at NULLS LAST, g.created_at, g.id)
$$;

-- An account: what a holder has of a meter and what it may have, window by window, the month first. The caller holds
-- its lock. The same reading as reservation/sql/read.sql.
CREATE FUNCTION account_of(of_holder uuid, meter text)
RETURNS TABLE (user_id uuid, slots_in_use int, parked int, tier text, lane text, slots int, at timestamptz, counted smallint,
               max_waiting int, from_grants bigint, granted bigint, spans text[], starts timestamptz[], ends timestamptz[], limits bigint[], used bigint[], reserved bigint[])
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT h.user_id, h.slots_in_use, h.parked, plan.tier, plan.lane,
           slots_in_force(h.user_id, plan.tier, plan.slots, plan.own_slots), clock.at, coalesce(plan.counted, 0::smallint),
           plan.max_waiting, coalesce(w.from_grants, 0),
           CASE WHEN h.has_grants THEN
               coalesce((SELECT sum(g.amount)::bigint FROM grants_left(h.user_id, h.event_type, clock.at) g), 0)
           ELSE 0 END,
           w.spans, w.starts, w.ends, w.limits, w.used, w.reserved
    FROM (SELECT * FROM holders k WHERE k.holder = of_holder AND k.event_type = meter) h
    CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
    LEFT JOIN LATERAL limits_of(h.user_id, h.event_type, clock.at) plan ON h.user_id IS NOT NULL
    LEFT JOIN LATERAL (
        SELECT array_agg(c.span ORDER BY c.bit) AS spans, array_agg(c.first ORDER BY c.bit) AS starts,
               array_agg(c.past ORDER BY c.bit) AS ends, array_agg(c.most ORDER BY c.bit) AS limits,
               array_agg(coalesce(b.used, 0) ORDER BY c.bit) AS used,
               array_agg(coalesce(b.reserved, 0) ORDER BY c.bit) AS reserved,
               sum(b.from_grants) FILTER (WHERE c.bit = 0)::bigint AS from_grants
        FROM (
            SELECT 0 AS bit, 'month' AS span, plan.month AS most, p.period_start AS first, p.period_end AS past
            FROM billing_period(plan.anchor, clock.at) p
            UNION ALL
            SELECT s.bit, s.span, s.most, date_trunc(s.span, clock.at, 'UTC'),
                   date_trunc(s.span, clock.at, 'UTC') + s.length
            FROM (VALUES (1, 'day', plan.day, interval '24 hours'), (2, 'hour', plan.hour, interval '1 hour'),
                         (4, 'minute', plan.minute, interval '1 minute')) AS s (bit, span, most, length)
            WHERE plan.counted & s.bit <> 0
        ) c
        LEFT JOIN quota_balances b
            ON b.user_id = h.user_id AND b.event_type = h.event_type AND b.span = c.span AND b.period_start = c.first
    ) w ON h.user_id IS NOT NULL
$$;

-- A quota as the API answers it. What is left is the plan's, and of a month what grants would pay for besides.
CREATE FUNCTION quota_json(used bigint, reserved bigint, most bigint, reset_at timestamptz, from_grants bigint DEFAULT 0,
                           granted bigint DEFAULT 0) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'used', used, 'reserved', reserved, 'limit', most,
        'remaining', CASE WHEN most IS NOT NULL
                          THEN (greatest(most::numeric - (used::numeric + reserved - from_grants), 0) + granted)::bigint END,
        'reset_at', to_char(reset_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
$$;

-- The decision is only right when each statement sees what was committed before it.
CREATE FUNCTION need_read_committed(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE invalid_transaction_state USING
            MESSAGE = format('%s needs READ COMMITTED, and this transaction is %s',
                             name, upper(current_setting('transaction_isolation'))),
            HINT = 'what others commit while it waits for its lock must be seen; BEGIN ISOLATION LEVEL READ COMMITTED';
    END IF;
END
$$;
