CREATE TABLE usage_events (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    quota_amount bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id bigint,
    period_start timestamptz NOT NULL,
    windows smallint NOT NULL DEFAULT 0,
    reserved_at timestamptz,
    xid xid8 DEFAULT pg_current_xact_id(),
    reason text,
    from_grants bigint NOT NULL DEFAULT 0,
    overage bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (id),
    UNIQUE (job_id),
    CONSTRAINT usage_events_quota_amount_check CHECK ((quota_amount >= 0) OR (reason IS NOT NULL))
)
-- PostgreSQL's default waits until a fifth of the rows are dead: several archived months.
WITH (autovacuum_vacuum_scale_factor = 0.02);

COMMENT ON TABLE usage_events IS
    'The charges, one row per completed job or adjustment.';
COMMENT ON COLUMN usage_events.id IS
    'The event''s id, which stays the same whenever it is read.';
COMMENT ON COLUMN usage_events.user_id IS
    'The user.';
COMMENT ON COLUMN usage_events.event_type IS
    'The meter.';
COMMENT ON COLUMN usage_events.quota_amount IS
    'The charge, in the meter''s unit; an adjustment may be negative.';
COMMENT ON COLUMN usage_events.created_at IS
    'When it was charged. Its transaction commits later.';
COMMENT ON COLUMN usage_events.job_id IS
    'Unique: a job is charged once, even if its workers crash. Null for an adjustment.';
COMMENT ON COLUMN usage_events.period_start IS
    'The start of the billing period that it counts in.';
COMMENT ON COLUMN usage_events.windows IS
    'The windows other than the month that the amount counts in, around reserved_at: 1 day, 2 hour, 4 minute.';
COMMENT ON COLUMN usage_events.reserved_at IS
    'When it was reserved, where a window needs it.';
COMMENT ON COLUMN usage_events.xid IS
    'The transaction that wrote the row: the order of the usage feed. Null for rows that came from another server, or were imported and are billed.';
COMMENT ON COLUMN usage_events.reason IS
    'The reason of an adjustment. An adjustment may be negative. `imported`: the event comes from another product.';
COMMENT ON COLUMN usage_events.from_grants IS
    'The part of quota_amount that was charged to grants and not to the plan.';
COMMENT ON COLUMN usage_events.overage IS
    'The part of quota_amount that was overage when the job was accepted.';

CREATE INDEX usage_events_before ON usage_events (id) WHERE xid IS NULL;
CREATE INDEX usage_events_feed ON usage_events (xid) WHERE xid IS NOT NULL;
CREATE INDEX usage_events_sum ON usage_events (user_id, event_type, created_at);
