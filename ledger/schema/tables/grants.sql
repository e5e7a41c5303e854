CREATE TABLE grants (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    amount bigint NOT NULL,
    reserved bigint NOT NULL DEFAULT 0,
    used bigint NOT NULL DEFAULT 0,
    expires_at timestamptz,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id),
    CONSTRAINT grants_amount_check CHECK (amount >= 0),
    CONSTRAINT grants_check CHECK (((reserved)::numeric + (used)::numeric) <= (amount)::numeric),
    CONSTRAINT grants_expires_at_exists CHECK (isfinite(expires_at) AND (expires_at <= '9999-12-30 22:00:00.999999+00')),
    CONSTRAINT grants_reserved_check CHECK (reserved >= 0),
    CONSTRAINT grants_used_check CHECK (used >= 0)
);

COMMENT ON TABLE grants IS
    'Bought or given amounts. They are used after the monthly limit, those that expire first before others.';
COMMENT ON COLUMN grants.id IS
    'The grant''s id.';
COMMENT ON COLUMN grants.user_id IS
    'The user who has it.';
COMMENT ON COLUMN grants.event_type IS
    'The meter.';
COMMENT ON COLUMN grants.amount IS
    'The whole amount, in units of the meter. A grant that was taken back keeps what was used or reserved of it.';
COMMENT ON COLUMN grants.reserved IS
    'Held by reservations.';
COMMENT ON COLUMN grants.used IS
    'Charged by finished jobs.';
COMMENT ON COLUMN grants.expires_at IS
    'Nothing can be drawn after this time; an existing draw stays until its reservation ends. Null: never.';
COMMENT ON COLUMN grants.reason IS
    'Why it was given, for operators.';
COMMENT ON COLUMN grants.created_at IS
    'When it was given.';

CREATE INDEX grants_left ON grants (user_id, event_type) WHERE used < amount;
