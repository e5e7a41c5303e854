-- Weir's own tables. River's stay exactly as River's migrations make them: nothing here touches river_*.

CREATE TYPE plan_tier AS ENUM ('free', 'pro', 'pro_plus', 'enterprise');
CREATE TYPE subscription_status AS ENUM ('active', 'canceled', 'expired');
CREATE TYPE usage_event_type AS ENUM ('specview', 'analysis');

CREATE TABLE users (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE subscription_plans (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    tier plan_tier NOT NULL UNIQUE,
    specview_monthly_limit int CHECK (specview_monthly_limit >= 0),
    analysis_monthly_limit int CHECK (analysis_monthly_limit >= 0),
    retention_days int CHECK (retention_days > 0),
    monthly_price int CHECK (monthly_price >= 0),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN subscription_plans.specview_monthly_limit IS 'test cases a month; null is unlimited';
COMMENT ON COLUMN subscription_plans.analysis_monthly_limit IS 'analyses a month; null is unlimited';
COMMENT ON COLUMN subscription_plans.monthly_price IS 'US dollars; null is by contract';

INSERT INTO subscription_plans (tier, specview_monthly_limit, analysis_monthly_limit, retention_days, monthly_price) VALUES
    ('free', 5000, 50, 30, 0),
    ('pro', 100000, 1000, 180, 15),
    ('pro_plus', 500000, 5000, 365, 59),
    ('enterprise', NULL, NULL, NULL, NULL);

CREATE TABLE user_subscriptions (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    plan_id uuid NOT NULL REFERENCES subscription_plans ON DELETE RESTRICT,
    status subscription_status NOT NULL DEFAULT 'active',
    current_period_start timestamptz NOT NULL DEFAULT now(),
    current_period_end timestamptz NOT NULL DEFAULT now() + interval '1 month',
    canceled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((status = 'canceled') = (canceled_at IS NOT NULL))
);
COMMENT ON COLUMN user_subscriptions.current_period_start IS
    'the anchor of the billing periods: they begin on its day of the month, for ever; no job has to move it';
CREATE UNIQUE INDEX user_subscriptions_active ON user_subscriptions (user_id) WHERE status = 'active';

-- A holder is whoever jobs are counted against: a user (its id), or an anonymous client address (a UUID made
-- from it). Its row per event type is what every reservation and every settlement locks first, so the counters
-- beside it need no lock of their own.
CREATE TABLE holders (
    holder uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    user_id uuid REFERENCES users ON DELETE CASCADE,
    slots_in_use int NOT NULL DEFAULT 0 CHECK (slots_in_use >= 0),
    parked int NOT NULL DEFAULT 0 CHECK (parked >= 0),
    granted_slots int NOT NULL DEFAULT 0,
    PRIMARY KEY (holder, event_type)
    -- No other index: every reservation and settlement updates the counters, and only while no index holds one of
    -- them does the new version of the row stay in its page (HOT) and out of all indexes.
) WITH (fillfactor = 70);
COMMENT ON COLUMN holders.granted_slots IS 'the slot limit in force when a slot was last given; the largest int is unlimited';

-- used and reserved of one billing period, kept so that a reservation costs the same whatever the history.
CREATE TABLE quota_balances (
    user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    event_type usage_event_type NOT NULL,
    period_start timestamptz NOT NULL,
    used bigint NOT NULL DEFAULT 0 CHECK (used >= 0),
    reserved bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    granted_limit bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (user_id, event_type, period_start)
) WITH (fillfactor = 70);
COMMENT ON COLUMN quota_balances.granted_limit IS
    'the plan limit in force when a reservation was last accepted; the largest bigint is unlimited';

-- A reservation is the ticket of one unfinished job: it holds quota (reserved_amount), and a slot while
-- admitted_at is set. While parked_at is set it waits for one. With neither, its job is between two attempts.
CREATE TABLE quota_reservations (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    user_id uuid REFERENCES users ON DELETE CASCADE,
    event_type usage_event_type NOT NULL,
    reserved_amount int NOT NULL CHECK (reserved_amount >= 0),
    job_id bigint NOT NULL UNIQUE,
    expires_at timestamptz NOT NULL DEFAULT now() + interval '1 hour',
    created_at timestamptz NOT NULL DEFAULT now(),
    holder uuid NOT NULL,
    period_start timestamptz,
    admitted_at timestamptz DEFAULT now(),
    parked_at timestamptz,
    CHECK (admitted_at IS NULL OR parked_at IS NULL)
);
COMMENT ON COLUMN quota_reservations.user_id IS 'null for an anonymous job, which holds a slot but no quota';
COMMENT ON COLUMN quota_reservations.period_start IS 'the billing period that the job is charged to, whenever it ends';
CREATE INDEX quota_reservations_sum ON quota_reservations (user_id, event_type, expires_at);
CREATE INDEX quota_reservations_parked ON quota_reservations (holder, event_type, job_id) WHERE parked_at IS NOT NULL;

CREATE TABLE usage_events (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    event_type usage_event_type NOT NULL,
    analysis_id uuid,
    document_id uuid,
    quota_amount int NOT NULL CHECK (quota_amount >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    job_id bigint UNIQUE,
    period_start timestamptz NOT NULL
);
COMMENT ON COLUMN usage_events.job_id IS 'unique: a job is charged once, whatever happens to its workers';
CREATE INDEX usage_events_sum ON usage_events (user_id, event_type, created_at);

-- What was accepted, from whom: whose a job is, and which answer an Idempotency-Key already has.
CREATE TABLE submissions (
    job_id bigint PRIMARY KEY,
    holder uuid NOT NULL,
    user_id uuid,
    event_type usage_event_type NOT NULL,
    reserved_amount int NOT NULL,
    idempotency_key text,
    request_hash bytea,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX submissions_of_holder ON submissions (holder, job_id DESC);
CREATE UNIQUE INDEX submissions_idempotency ON submissions (holder, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- One row per running `weir` process that works jobs.
CREATE TABLE processes (
    client_id text PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now(),
    beat_at timestamptz NOT NULL DEFAULT now(),
    pools jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 70);
COMMENT ON COLUMN processes.client_id IS 'the River client id, as in river_job.attempted_by';
COMMENT ON COLUMN processes.pools IS 'queue name to number of workers';

-- Rendered tests, so that nobody pays twice for the same test in the same language.
CREATE TABLE specview_cache (
    holder uuid NOT NULL,
    language text NOT NULL,
    test_key bytea NOT NULL,
    rendered text NOT NULL,
    job_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (holder, language, test_key)
);
CREATE INDEX specview_cache_age ON specview_cache (created_at);

-- What this database was given once, for ever.
CREATE TABLE weir_settings (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    address_namespace uuid NOT NULL DEFAULT gen_random_uuid()
);
COMMENT ON COLUMN weir_settings.address_namespace IS
    'client addresses become holders as UUIDv5 in this namespace, so that no table holds an address';
INSERT INTO weir_settings DEFAULT VALUES;

-- The billing period around `at`: calendar months in UTC, counted from the anchor itself and not from the
-- period before, so that an anchor on the 31st comes back to the 31st after February.
CREATE FUNCTION billing_period(anchor timestamptz, at timestamptz, OUT period_start timestamptz, OUT period_end timestamptz)
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    a timestamp := anchor AT TIME ZONE 'UTC';
    t timestamp := at AT TIME ZONE 'UTC';
    n int := (extract(year FROM t) - extract(year FROM a)) * 12 + extract(month FROM t) - extract(month FROM a);
BEGIN
    IF a + make_interval(months => n) > t THEN
        n := n - 1;
    END IF;
    period_start := (a + make_interval(months => n)) AT TIME ZONE 'UTC';
    period_end := (a + make_interval(months => n + 1)) AT TIME ZONE 'UTC';
END
$$;

-- The period of a user at a moment. Without a subscription, periods are calendar months.
CREATE FUNCTION period_start_of(of_user uuid, at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT (billing_period(coalesce(
        (SELECT s.current_period_start FROM user_subscriptions s WHERE s.user_id = of_user AND s.status = 'active'),
        timestamptz '2000-01-01 00:00:00+00'), at)).period_start
$$;

-- Rows that others write (an operator, a migration, another program) keep the counters right by triggers.
-- Weir's own transactions book their counters themselves, in one update for both tables, and say so with
-- weir.books = 'kept'.
CREATE FUNCTION fill_quota_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.period_start IS NULL AND NEW.user_id IS NOT NULL THEN
        NEW.period_start := period_start_of(NEW.user_id, NEW.created_at);
    END IF;
    -- Nested, since usage_events has no such column to look at.
    IF TG_TABLE_NAME = 'quota_reservations' THEN
        NEW.holder := coalesce(NEW.holder, NEW.user_id);
    END IF;
    RETURN NEW;
END
$$;

CREATE FUNCTION book_usage_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        UPDATE quota_balances b SET used = b.used - o.amount
        FROM (SELECT user_id, event_type, period_start, sum(quota_amount) AS amount FROM old_rows GROUP BY 1, 2, 3) o
        WHERE (b.user_id, b.event_type, b.period_start) = (o.user_id, o.event_type, o.period_start);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO quota_balances AS b (user_id, event_type, period_start, used)
        SELECT user_id, event_type, period_start, sum(quota_amount) FROM new_rows GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        ON CONFLICT (user_id, event_type, period_start) DO UPDATE SET used = b.used + excluded.used;
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION book_quota_reservations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        UPDATE holders h SET slots_in_use = h.slots_in_use - o.slots, parked = h.parked - o.parked
        FROM (SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked
              FROM old_rows GROUP BY 1, 2) o
        WHERE (h.holder, h.event_type) = (o.holder, o.event_type);
        UPDATE quota_balances b SET reserved = b.reserved - o.amount
        FROM (SELECT user_id, event_type, period_start, sum(reserved_amount) AS amount
              FROM old_rows WHERE user_id IS NOT NULL GROUP BY 1, 2, 3) o
        WHERE (b.user_id, b.event_type, b.period_start) = (o.user_id, o.event_type, o.period_start);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO holders AS h (holder, event_type, user_id, slots_in_use, parked)
        SELECT holder, event_type, user_id, count(admitted_at), count(parked_at)
        FROM new_rows GROUP BY 1, 2, 3 ORDER BY 1, 2
        ON CONFLICT (holder, event_type) DO UPDATE
            SET slots_in_use = h.slots_in_use + excluded.slots_in_use, parked = h.parked + excluded.parked;
        INSERT INTO quota_balances AS b (user_id, event_type, period_start, reserved)
        SELECT user_id, event_type, period_start, sum(reserved_amount)
        FROM new_rows WHERE user_id IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        ON CONFLICT (user_id, event_type, period_start) DO UPDATE SET reserved = b.reserved + excluded.reserved;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fill BEFORE INSERT ON usage_events FOR EACH ROW
    WHEN (NEW.period_start IS NULL) EXECUTE FUNCTION fill_quota_row();
CREATE TRIGGER fill BEFORE INSERT ON quota_reservations FOR EACH ROW
    WHEN (NEW.holder IS NULL OR NEW.period_start IS NULL AND NEW.user_id IS NOT NULL) EXECUTE FUNCTION fill_quota_row();

CREATE TRIGGER book_insert AFTER INSERT ON usage_events REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_usage_events();
CREATE TRIGGER book_update AFTER UPDATE ON usage_events REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_usage_events();
CREATE TRIGGER book_delete AFTER DELETE ON usage_events REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_usage_events();
CREATE TRIGGER book_insert AFTER INSERT ON quota_reservations REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_quota_reservations();
CREATE TRIGGER book_update AFTER UPDATE ON quota_reservations REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_quota_reservations();
CREATE TRIGGER book_delete AFTER DELETE ON quota_reservations REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_quota_reservations();
