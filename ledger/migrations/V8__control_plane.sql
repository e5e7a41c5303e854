-- The control plane: who may act for others, what operators and billing decide, and a log of it that nobody edits.

-- A backend's keys. The secret has 256 random bits, which nobody guesses however fast the hash is; a salt or a slow hash
-- protects what people choose, and would only make each request slow.
CREATE TABLE service_keys (
    name text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 100),
    secret_hash bytea NOT NULL UNIQUE,
    scopes text[] NOT NULL CHECK (scopes <@ ARRAY['submit', 'read', 'admin'] AND cardinality(scopes) > 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz
);
COMMENT ON COLUMN service_keys.secret_hash IS 'SHA-256 of the key; the key itself is nowhere';
COMMENT ON COLUMN service_keys.last_used_at IS 'to the minute';

CREATE TABLE admin_log (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    holder uuid,
    event_type usage_event_type,
    reason text,
    before jsonb,
    after jsonb
);
COMMENT ON TABLE admin_log IS 'what operators and billing changed; rows are added, and never changed or deleted';
COMMENT ON COLUMN admin_log.actor IS 'key:NAME over HTTP, shell:USER at the command line, weir for what falls due';
CREATE FUNCTION refuse_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: its rows are neither changed nor deleted', TG_TABLE_NAME;
END
$$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON admin_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_changes();
-- Ids are in the order of the commits, so that whoever reads on from one misses none.
CREATE FUNCTION queue_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(TG_RELID::bigint);
    RETURN NULL;
END
$$;
CREATE TRIGGER queue_up BEFORE INSERT ON admin_log FOR EACH STATEMENT EXECUTE FUNCTION queue_up();

-- Answers to changes with an Idempotency-Key, by what they were made to.
CREATE TABLE admin_requests (
    holder uuid NOT NULL,
    idempotency_key text NOT NULL,
    request jsonb NOT NULL,
    answer jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (holder, idempotency_key)
);

-- A change that waits for the period's end is in force from that moment on, whoever looks: nothing has to run then.
ALTER TABLE user_subscriptions
    ADD COLUMN next_plan_id uuid REFERENCES subscription_plans ON DELETE RESTRICT,
    ADD COLUMN next_plan_at timestamptz,
    ADD CHECK ((next_plan_id IS NULL) = (next_plan_at IS NULL));
COMMENT ON COLUMN user_subscriptions.next_plan_id IS 'the plan from next_plan_at on; written into plan_id some time after';
CREATE INDEX user_subscriptions_next ON user_subscriptions (next_plan_at) WHERE next_plan_at IS NOT NULL;

CREATE TABLE plan_changes (
    event_id text PRIMARY KEY CHECK (octet_length(event_id) BETWEEN 1 AND 255),
    user_id uuid NOT NULL,
    plan text NOT NULL,
    occurred_at timestamptz NOT NULL,
    effective text NOT NULL CHECK (effective IN ('now', 'period_end')),
    applied boolean NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON COLUMN plan_changes.event_id IS 'as the payment provider has it: the same event again changes nothing';
COMMENT ON COLUMN plan_changes.applied IS 'false for an event that came after a newer one';
CREATE INDEX plan_changes_of_user ON plan_changes (user_id, occurred_at DESC) WHERE applied;

CREATE TABLE limit_overrides (
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL REFERENCES meters ON DELETE CASCADE,
    month bigint CHECK (month >= -1),
    day bigint CHECK (day >= -1),
    hour bigint CHECK (hour >= -1),
    minute bigint CHECK (minute >= -1),
    slots int CHECK (slots > 0),
    expires_at timestamptz,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, event_type)
);
COMMENT ON TABLE limit_overrides IS 'what counts for one user instead of its plan; null is the plan''s, -1 is unlimited';
COMMENT ON COLUMN limit_overrides.changed_at IS 'jobs that wait for a slot are looked at right after';
CREATE INDEX limit_overrides_changed ON limit_overrides (changed_at);

-- The plan of a user as it counts for a meter: that of the active subscription, or else the default one; and the slots
-- that the user has whatever the plan says. Each statement has it put in, as if it stood there.
DROP FUNCTION plan_of(uuid, text);
CREATE FUNCTION plan_of(of_user uuid, meter text) RETURNS TABLE (tier text, lane text, slots int, own_slots int)
LANGUAGE sql STABLE AS $$
    SELECT p.tier::text, p.lane, l.slots,
           (SELECT o.slots FROM limit_overrides o
            WHERE o.user_id = of_user AND o.event_type = meter AND (o.expires_at IS NULL OR o.expires_at > now()))
    FROM subscription_plans p
    JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = meter
    WHERE p.id = coalesce(
        (SELECT CASE WHEN s.next_plan_at <= now() THEN s.next_plan_id ELSE s.plan_id END
         FROM user_subscriptions s WHERE s.user_id = of_user AND s.status = 'active'),
        (SELECT d.id FROM subscription_plans d WHERE d.is_default))
    OFFSET 0
$$;

-- What was billed stays, whatever becomes of the row in users, which may be the product's own table.
ALTER TABLE usage_events DROP CONSTRAINT usage_events_user_id_fkey;
ALTER TABLE quota_balances DROP CONSTRAINT quota_balances_user_id_fkey;

-- Usage is read in the order in which transactions began, and only as far as all of them are over, so that no event turns
-- up behind a cursor. Rows of before have no transaction and come first. Not validated: what is there is as it was.
ALTER TABLE usage_events
    ADD COLUMN xid xid8,
    ADD COLUMN reason text,
    DROP CONSTRAINT usage_events_quota_amount_check,
    ADD CONSTRAINT usage_events_quota_amount_check CHECK (quota_amount >= 0 OR reason IS NOT NULL) NOT VALID;
ALTER TABLE usage_events ALTER COLUMN xid SET DEFAULT pg_current_xact_id();
COMMENT ON COLUMN usage_events.xid IS 'the transaction that wrote it; null for rows of before and of another server';
COMMENT ON COLUMN usage_events.reason IS 'of an adjustment, which may give back';
-- One entry a transaction with the places of its rows, written at the right end.
CREATE INDEX usage_events_feed ON usage_events (xid) WHERE xid IS NOT NULL;
CREATE INDEX usage_events_before ON usage_events (id) WHERE xid IS NULL;
