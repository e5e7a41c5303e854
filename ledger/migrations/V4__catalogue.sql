-- Meters and plans are data: the catalogue. What was an enum becomes a name in a table, and a plan's limits become rows.

ALTER TYPE usage_event_type RENAME TO enum_of_meters;
ALTER TYPE plan_tier RENAME TO enum_of_plans;
-- Collated by bytes, so that the order in which rows are locked is the same everywhere.
CREATE DOMAIN usage_event_type AS text COLLATE "C";
CREATE DOMAIN plan_tier AS text COLLATE "C";

CREATE TABLE meters (
    name usage_event_type PRIMARY KEY,
    unit text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN meters.unit IS 'what one is, in the plural';
INSERT INTO meters (name, unit) SELECT name::text, 'units' FROM unnest(enum_range(NULL::enum_of_meters)) AS name;

DROP FUNCTION monthly_limit(subscription_plans, enum_of_meters);
DROP FUNCTION no_limit_for(enum_of_meters);

ALTER TABLE subscription_plans
    ALTER COLUMN tier TYPE plan_tier USING tier::text,
    ADD COLUMN lane text NOT NULL DEFAULT 'default' CHECK (lane IN ('priority', 'default')),
    ADD COLUMN is_default boolean NOT NULL DEFAULT false;
CREATE UNIQUE INDEX subscription_plans_default ON subscription_plans (is_default) WHERE is_default;
COMMENT ON COLUMN subscription_plans.tier IS 'the plan''s name';
COMMENT ON COLUMN subscription_plans.is_default IS 'the plan of whoever has no active subscription';
-- The first version knew these plans by name.
UPDATE subscription_plans
SET is_default = tier = 'free', lane = CASE WHEN tier = 'free' THEN 'default' ELSE 'priority' END;

CREATE TABLE plan_limits (
    plan_id uuid NOT NULL REFERENCES subscription_plans ON DELETE CASCADE,
    event_type usage_event_type NOT NULL REFERENCES meters ON DELETE CASCADE,
    month bigint CHECK (month >= 0),
    day bigint CHECK (day >= 0),
    hour bigint CHECK (hour >= 0),
    minute bigint CHECK (minute >= 0),
    slots int NOT NULL CHECK (slots > 0),
    counted smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (plan_id, event_type)
);
COMMENT ON TABLE plan_limits IS
    'how much of a meter a plan allows in each window; null is unlimited. The month is the subscription''s, the others UTC''s';
COMMENT ON COLUMN plan_limits.slots IS 'how many jobs of one holder may be worked on at once';
COMMENT ON COLUMN plan_limits.counted IS
    'the windows in which the meter is counted besides the month, because some plan limits it there: 1 day, 2 hour, 4 minute';
-- The limits were columns, one a meter, called after it. They stay, and are followed.
INSERT INTO plan_limits (plan_id, event_type, month, slots)
SELECT p.id, m.name, (to_jsonb(p) ->> (m.name || '_monthly_limit'))::bigint,
       CASE p.tier WHEN 'free' THEN 1 WHEN 'enterprise' THEN 5 ELSE 3 END
FROM subscription_plans p CROSS JOIN meters m;

CREATE TABLE catalogue_changes (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    changed_at timestamptz NOT NULL DEFAULT now(),
    change text NOT NULL
);
COMMENT ON TABLE catalogue_changes IS 'what `weir migrate` has changed in meters and plans';

ALTER TABLE holders ALTER COLUMN event_type TYPE usage_event_type USING event_type::text;
ALTER TABLE quota_balances
    ALTER COLUMN event_type TYPE usage_event_type USING event_type::text,
    ADD COLUMN span text NOT NULL DEFAULT 'month' CHECK (span IN ('month', 'day', 'hour', 'minute')),
    DROP CONSTRAINT quota_balances_pkey,
    ADD PRIMARY KEY (user_id, event_type, span, period_start);
COMMENT ON COLUMN quota_balances.span IS 'the kind of window that starts at period_start';
CREATE INDEX quota_balances_over ON quota_balances (period_start) WHERE span <> 'month';
ALTER TABLE quota_reservations
    ALTER COLUMN event_type TYPE usage_event_type USING event_type::text,
    ALTER COLUMN reserved_amount TYPE bigint,
    ADD COLUMN windows smallint NOT NULL DEFAULT 0;
COMMENT ON COLUMN quota_reservations.windows IS
    'the windows besides the month that it is counted in, those around created_at: 1 day, 2 hour, 4 minute';
ALTER TABLE usage_events
    ALTER COLUMN event_type TYPE usage_event_type USING event_type::text,
    ALTER COLUMN quota_amount TYPE bigint,
    ADD COLUMN windows smallint NOT NULL DEFAULT 0,
    ADD COLUMN reserved_at timestamptz;
COMMENT ON COLUMN usage_events.windows IS
    'the windows besides the month that it is counted in, those around reserved_at: 1 day, 2 hour, 4 minute';
COMMENT ON COLUMN usage_events.reserved_at IS 'when it was reserved, where that matters to a window';
ALTER TABLE submissions
    ALTER COLUMN event_type TYPE usage_event_type USING event_type::text,
    ALTER COLUMN reserved_amount TYPE bigint;

DROP TYPE enum_of_meters;
DROP TYPE enum_of_plans;

-- Amounts are bigint in the old columns, too, whatever they are called.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT attname FROM pg_attribute
        WHERE attrelid = 'subscription_plans'::regclass AND attname LIKE '%\_monthly\_limit' AND NOT attisdropped
    LOOP
        EXECUTE format('ALTER TABLE subscription_plans ALTER COLUMN %I TYPE bigint', name);
    END LOOP;
END
$$;

-- A plan without limits for a meter is an error of the catalogue, and nobody's unlimited plan.
CREATE FUNCTION no_limits_for(event_type text) RETURNS int
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RAISE EXCEPTION 'the plan has no limits for the meter %', event_type
        USING HINT = 'run `weir migrate` with the weir.toml that defines the meter';
END
$$;

-- Whoever writes a plan by hand gets limits for every meter, and changes a month's by its column.
CREATE FUNCTION follow_monthly_limits() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    new_plan jsonb := to_jsonb(NEW);
    old_plan jsonb := CASE WHEN TG_OP = 'UPDATE' THEN to_jsonb(OLD) ELSE '{}' END;
BEGIN
    INSERT INTO plan_limits (plan_id, event_type, month, slots)
    SELECT NEW.id, m.name, (new_plan ->> (m.name || '_monthly_limit'))::bigint,
           coalesce((SELECT l.slots FROM plan_limits l JOIN subscription_plans p ON p.id = l.plan_id
                     WHERE p.is_default AND l.event_type = m.name), 1)
    FROM meters m
    ON CONFLICT DO NOTHING;
    UPDATE plan_limits l
    SET month = (new_plan ->> (l.event_type || '_monthly_limit'))::bigint
    WHERE l.plan_id = NEW.id
      AND new_plan -> (l.event_type || '_monthly_limit') IS DISTINCT FROM old_plan -> (l.event_type || '_monthly_limit');
    RETURN NULL;
END
$$;
CREATE TRIGGER follow_monthly_limits AFTER INSERT OR UPDATE ON subscription_plans
    FOR EACH ROW EXECUTE FUNCTION follow_monthly_limits();

-- A limit holds in windows that are counted, so whoever writes one by hand has its window counted: in every plan, since a
-- change of plan meets what was used. One at a time, from before the first row on: each must see the others' limits.
CREATE FUNCTION count_limited_windows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_WHEN = 'BEFORE' THEN
        LOCK TABLE plan_limits IN SHARE UPDATE EXCLUSIVE MODE;
        RETURN NULL;
    END IF;
    UPDATE plan_limits l
    SET counted = c.windows
    FROM (
        SELECT event_type,
               (max(CASE WHEN day IS NOT NULL THEN 1 ELSE 0 END) + max(CASE WHEN hour IS NOT NULL THEN 2 ELSE 0 END)
                + max(CASE WHEN minute IS NOT NULL THEN 4 ELSE 0 END))::smallint AS windows
        FROM plan_limits GROUP BY 1
    ) c
    WHERE l.event_type = c.event_type AND l.counted <> c.windows;
    RETURN NULL;
END
$$;
CREATE TRIGGER count_limited_windows_before BEFORE INSERT OR DELETE OR UPDATE OF day, hour, minute ON plan_limits
    FOR EACH STATEMENT EXECUTE FUNCTION count_limited_windows();
CREATE TRIGGER count_limited_windows AFTER INSERT OR DELETE OR UPDATE OF day, hour, minute ON plan_limits
    FOR EACH STATEMENT EXECUTE FUNCTION count_limited_windows();

-- The windows that an amount is counted in.
CREATE FUNCTION windows_of(month_start timestamptz, windows smallint, at timestamptz)
RETURNS TABLE (span text, period_start timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT 'month', month_start WHERE month_start IS NOT NULL
    UNION ALL
    SELECT w.span, date_trunc(w.span, at, 'UTC')
    FROM (VALUES (1, 'day'), (2, 'hour'), (4, 'minute')) AS w (bit, span)
    WHERE windows & w.bit <> 0 AND month_start IS NOT NULL
$$;

-- What the balances add up. The month apart, since most rows are counted in nothing else.
CREATE VIEW charged_amounts AS
SELECT user_id, event_type, 'month' AS span, period_start, quota_amount AS amount FROM usage_events
UNION ALL
SELECT u.user_id, u.event_type, w.span, date_trunc(w.span, coalesce(u.reserved_at, u.created_at), 'UTC'), u.quota_amount
FROM usage_events u
JOIN (VALUES (1, 'day'), (2, 'hour'), (4, 'minute')) AS w (bit, span) ON u.windows & w.bit <> 0
WHERE u.windows <> 0;
CREATE VIEW reserved_amounts AS
SELECT user_id, event_type, 'month' AS span, period_start, reserved_amount AS amount
FROM quota_reservations
WHERE user_id IS NOT NULL AND period_start IS NOT NULL
UNION ALL
SELECT r.user_id, r.event_type, w.span, date_trunc(w.span, r.created_at, 'UTC'), r.reserved_amount
FROM quota_reservations r
JOIN (VALUES (1, 'day'), (2, 'hour'), (4, 'minute')) AS w (bit, span) ON r.windows & w.bit <> 0
WHERE r.windows <> 0 AND r.user_id IS NOT NULL AND r.period_start IS NOT NULL;

CREATE OR REPLACE FUNCTION fill_quota_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.period_start IS NULL AND NEW.user_id IS NOT NULL THEN
        NEW.period_start := period_start_of(NEW.user_id, NEW.created_at);
        NEW.windows := coalesce((SELECT max(l.counted) FROM plan_limits l WHERE l.event_type = NEW.event_type), 0);
    END IF;
    -- Nested, since usage_events has no such column to look at.
    IF TG_TABLE_NAME = 'quota_reservations' THEN
        NEW.holder := coalesce(NEW.holder, NEW.user_id);
    END IF;
    RETURN NEW;
END
$$;

-- What was an enum's doing: a name that no meter has would be counted by nobody. Asked where others write by hand, so that
-- a reservation pays nothing for it.
CREATE FUNCTION need_meters(names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    unknown text := (SELECT n FROM unnest(names) AS n WHERE NOT EXISTS (SELECT 1 FROM meters m WHERE m.name = n) LIMIT 1);
BEGIN
    IF unknown IS NOT NULL THEN
        RAISE foreign_key_violation USING
            MESSAGE = format('there is no meter %s', unknown),
            HINT = 'the table meters has their names; `weir migrate` brings those of weir.toml there';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION book_usage_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM lock_holders(ARRAY(SELECT DISTINCT user_id FROM old_rows));
        UPDATE quota_balances b SET used = b.used - o.amount
        FROM (SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.quota_amount) AS amount
              FROM old_rows r
              CROSS JOIN LATERAL windows_of(r.period_start, r.windows, coalesce(r.reserved_at, r.created_at)) w
              GROUP BY 1, 2, 3, 4) o
        WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, o.span, o.period_start);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM need_meters(ARRAY(SELECT DISTINCT event_type::text FROM new_rows));
        PERFORM lock_holders(ARRAY(SELECT DISTINCT user_id FROM new_rows));
        INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, used)
        SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.quota_amount)
        FROM new_rows r
        CROSS JOIN LATERAL windows_of(r.period_start, r.windows, coalesce(r.reserved_at, r.created_at)) w
        GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (user_id, event_type, span, period_start) DO UPDATE SET used = b.used + excluded.used;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION book_quota_reservations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM lock_holders(ARRAY(SELECT DISTINCT holder FROM old_rows));
        UPDATE holders h SET slots_in_use = h.slots_in_use - o.slots, parked = h.parked - o.parked
        FROM (SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked
              FROM old_rows GROUP BY 1, 2) o
        WHERE (h.holder, h.event_type) = (o.holder, o.event_type);
        UPDATE quota_balances b SET reserved = b.reserved - o.amount
        FROM (SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.reserved_amount) AS amount
              FROM old_rows r
              CROSS JOIN LATERAL windows_of(r.period_start, r.windows, r.created_at) w
              WHERE r.user_id IS NOT NULL GROUP BY 1, 2, 3, 4) o
        WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, o.span, o.period_start);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM need_meters(ARRAY(SELECT DISTINCT event_type::text FROM new_rows));
        INSERT INTO holders AS h (holder, event_type, user_id, slots_in_use, parked)
        SELECT holder, event_type, user_id, count(admitted_at), count(parked_at)
        FROM new_rows GROUP BY 1, 2, 3 ORDER BY 1, 2
        ON CONFLICT (holder, event_type) DO UPDATE
            SET slots_in_use = h.slots_in_use + excluded.slots_in_use, parked = h.parked + excluded.parked;
        INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, reserved)
        SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.reserved_amount)
        FROM new_rows r
        CROSS JOIN LATERAL windows_of(r.period_start, r.windows, r.created_at) w
        WHERE r.user_id IS NOT NULL GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (user_id, event_type, span, period_start) DO UPDATE SET reserved = b.reserved + excluded.reserved;
    END IF;
    RETURN NULL;
END
$$;

-- The other way round, at once: for whoever reads the columns, and since one that lags behind would not be followed when
-- it is set to what it has already.
CREATE FUNCTION write_monthly_limit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    written text := NEW.event_type || '_monthly_limit';
BEGIN
    IF EXISTS (SELECT 1 FROM pg_attribute
               WHERE attrelid = 'subscription_plans'::regclass AND attname = written AND NOT attisdropped) THEN
        EXECUTE format('UPDATE subscription_plans SET %1$I = $1 WHERE id = $2 AND %1$I IS DISTINCT FROM $1', written)
            USING NEW.month, NEW.plan_id;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER write_monthly_limit AFTER INSERT OR UPDATE OF month ON plan_limits
    FOR EACH ROW EXECUTE FUNCTION write_monthly_limit();
