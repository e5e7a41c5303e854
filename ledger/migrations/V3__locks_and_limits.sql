-- The limit of a plan for an event type. A type that is added without a limit of its own is an error, and not another
-- type's limit.
CREATE FUNCTION no_limit_for(event_type usage_event_type) RETURNS int
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RAISE EXCEPTION 'no plan has a limit for the event type %', event_type
        USING HINT = 'add a column to subscription_plans and a branch to monthly_limit()';
END
$$;

CREATE FUNCTION monthly_limit(plan subscription_plans, event_type usage_event_type) RETURNS int
LANGUAGE sql STABLE AS $$
    SELECT CASE event_type
        WHEN 'analysis' THEN plan.analysis_monthly_limit
        WHEN 'specview' THEN plan.specview_monthly_limit
        ELSE no_limit_for(event_type)
    END
$$;

-- River's clients listen on channels that are named after the schema of River's tables.
CREATE FUNCTION river_channel(topic text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT n.nspname || '.' || topic
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass('river_job')
$$;

-- A change of plan helps the jobs that wait already; it is found by its time, however it was written.
CREATE FUNCTION touch_updated_at() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := clock_timestamp();
    RETURN NEW;
END
$$;
CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON user_subscriptions
    FOR EACH ROW EXECUTE FUNCTION touch_updated_at();
CREATE INDEX user_subscriptions_changed ON user_subscriptions (updated_at);

-- Others who write usage events or reservations take the locks that a reservation takes, before they touch a balance:
-- one order everywhere, and one row that tells who is blocked.
CREATE FUNCTION lock_holders(of_holders uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM holders h WHERE h.holder = ANY (of_holders) ORDER BY h.holder, h.event_type FOR NO KEY UPDATE;
END
$$;

CREATE OR REPLACE FUNCTION book_usage_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM lock_holders(ARRAY(SELECT DISTINCT user_id FROM old_rows));
        UPDATE quota_balances b SET used = b.used - o.amount
        FROM (SELECT user_id, event_type, period_start, sum(quota_amount) AS amount FROM old_rows GROUP BY 1, 2, 3) o
        WHERE (b.user_id, b.event_type, b.period_start) = (o.user_id, o.event_type, o.period_start);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM lock_holders(ARRAY(SELECT DISTINCT user_id FROM new_rows));
        INSERT INTO quota_balances AS b (user_id, event_type, period_start, used)
        SELECT user_id, event_type, period_start, sum(quota_amount) FROM new_rows GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        ON CONFLICT (user_id, event_type, period_start) DO UPDATE SET used = b.used + excluded.used;
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
