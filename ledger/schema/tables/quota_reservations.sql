CREATE TABLE quota_reservations (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    user_id uuid,
    event_type usage_event_type NOT NULL,
    reserved_amount bigint NOT NULL,
    job_id bigint NOT NULL,
    expires_at timestamptz NOT NULL DEFAULT (now() + interval '1 hour'),
    created_at timestamptz NOT NULL DEFAULT now(),
    holder uuid NOT NULL,
    period_start timestamptz,
    admitted_at timestamptz DEFAULT now(),
    parked_at timestamptz,
    windows smallint NOT NULL DEFAULT 0,
    from_grants bigint NOT NULL DEFAULT 0,
    due_at timestamptz,
    progress jsonb,
    overage bigint NOT NULL DEFAULT 0,
    start_by timestamptz,
    PRIMARY KEY (job_id),
    CONSTRAINT quota_reservations_check CHECK ((admitted_at IS NULL) OR (parked_at IS NULL)),
    CONSTRAINT quota_reservations_due CHECK ((due_at IS NULL) OR ((admitted_at IS NULL) AND (parked_at IS NULL))),
    CONSTRAINT quota_reservations_reserved_amount_check CHECK (reserved_amount >= 0)
);

COMMENT ON TABLE quota_reservations IS
    'One row per unfinished job: it holds quota (reserved_amount), and a slot while admitted_at is set. While parked_at is set, the job waits for a slot. With neither, the job is scheduled or between two attempts. The row is deleted when the job ends.';
COMMENT ON COLUMN quota_reservations.id IS
    'The reservation''s id.';
COMMENT ON COLUMN quota_reservations.user_id IS
    'Null for an anonymous job, which holds a slot but no quota.';
COMMENT ON COLUMN quota_reservations.event_type IS
    'The meter.';
COMMENT ON COLUMN quota_reservations.reserved_amount IS
    'The reserved quota, in the meter''s unit.';
COMMENT ON COLUMN quota_reservations.job_id IS
    'The job in river_job.';
COMMENT ON COLUMN quota_reservations.expires_at IS
    'Renewed while the job lives. Maintenance removes an expired reservation if its job is finished or gone.';
COMMENT ON COLUMN quota_reservations.created_at IS
    'The moment that decided in which windows it counts.';
COMMENT ON COLUMN quota_reservations.holder IS
    'The account that it counts against.';
COMMENT ON COLUMN quota_reservations.period_start IS
    'The billing period that the job is charged to, whenever it ends.';
COMMENT ON COLUMN quota_reservations.admitted_at IS
    'Since when it holds a slot; null without one.';
COMMENT ON COLUMN quota_reservations.parked_at IS
    'Since when it waits for a slot; null when it does not.';
COMMENT ON COLUMN quota_reservations.windows IS
    'The windows other than the month that the amount counts in, around created_at: 1 day, 2 hour, 4 minute.';
COMMENT ON COLUMN quota_reservations.from_grants IS
    'The part of reserved_amount that was drawn on grants.';
COMMENT ON COLUMN quota_reservations.due_at IS
    'When the job requests a slot; null when it has requested one, or will with its next attempt.';
COMMENT ON COLUMN quota_reservations.progress IS
    'The last progress of the attempt: attempt, fraction, message.';
COMMENT ON COLUMN quota_reservations.overage IS
    'The part of reserved_amount that exceeded both the month''s limit and the grants.';
COMMENT ON COLUMN quota_reservations.start_by IS
    'After this time no attempt starts, and a waiting job is cancelled; null: never.';

CREATE INDEX quota_reservations_due_at ON quota_reservations (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX quota_reservations_parked ON quota_reservations (holder, event_type, job_id) WHERE parked_at IS NOT NULL;
CREATE INDEX quota_reservations_scheduled ON quota_reservations (holder, event_type) WHERE due_at IS NOT NULL;
CREATE INDEX quota_reservations_start_by ON quota_reservations (start_by) WHERE start_by IS NOT NULL;

CREATE TRIGGER fill BEFORE INSERT ON quota_reservations
    FOR EACH ROW WHEN (NEW.period_start IS NULL AND NEW.user_id IS NOT NULL)
    EXECUTE FUNCTION fill_quota_row();
CREATE TRIGGER emit_job_ends AFTER DELETE ON quota_reservations REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION emit_job_ends();
