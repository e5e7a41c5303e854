CREATE TABLE weir_jobs (
    job_id bigint NOT NULL,
    holder uuid NOT NULL,
    user_id uuid,
    event_type usage_event_type NOT NULL,
    reserved_amount bigint NOT NULL,
    idempotency_key text,
    request_hash bytea,
    submitted_at timestamptz,
    deleted_at timestamptz,
    ended_at timestamptz,
    reserved_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL DEFAULT (now() + interval '1 hour'),
    period_start timestamptz,
    windows smallint NOT NULL DEFAULT 0,
    from_grants bigint NOT NULL DEFAULT 0,
    overage bigint NOT NULL DEFAULT 0,
    admitted_at timestamptz,
    parked_at timestamptz,
    due_at timestamptz,
    start_by timestamptz,
    progress jsonb,
    PRIMARY KEY (job_id),
    CONSTRAINT weir_jobs_state CHECK (num_nonnulls(admitted_at, parked_at, due_at) <= (ended_at IS NULL)::int),
    CONSTRAINT weir_jobs_reserved_amount_check CHECK (reserved_amount >= 0)
)
-- Each job's row changes at least once. PostgreSQL's default waits until a fifth of the rows are dead.
WITH (autovacuum_vacuum_scale_factor = 0.02);

COMMENT ON TABLE weir_jobs IS
    'One row per job that counts against an account, from its submission until it is archived. Until ended_at it holds quota (reserved_amount), and a slot while admitted_at is set. While parked_at is set, the job waits for a slot. With neither, the job is scheduled or between two attempts.';
COMMENT ON COLUMN weir_jobs.job_id IS
    'The job in river_job.';
COMMENT ON COLUMN weir_jobs.holder IS
    'The account that it counts against.';
COMMENT ON COLUMN weir_jobs.user_id IS
    'The user; null for a client address, whose jobs hold slots but no quota.';
COMMENT ON COLUMN weir_jobs.event_type IS
    'The meter.';
COMMENT ON COLUMN weir_jobs.reserved_amount IS
    'The reserved quota, in the meter''s unit, with later extensions.';
COMMENT ON COLUMN weir_jobs.idempotency_key IS
    'The caller''s key; null without one, or after 24 hours.';
COMMENT ON COLUMN weir_jobs.request_hash IS
    'Shows whether a repeated key came with the same request.';
COMMENT ON COLUMN weir_jobs.submitted_at IS
    'When it was submitted; null for a job that another River client inserted.';
COMMENT ON COLUMN weir_jobs.deleted_at IS
    'When the job ended without a charge, or Weir found that it was deleted.';
COMMENT ON COLUMN weir_jobs.ended_at IS
    'Since when it holds neither quota nor a slot; null until then.';
COMMENT ON COLUMN weir_jobs.reserved_at IS
    'The moment that decided in which windows it counts.';
COMMENT ON COLUMN weir_jobs.expires_at IS
    'Renewed while the job lives. Maintenance ends an expired reservation if its job is finished or gone.';
COMMENT ON COLUMN weir_jobs.period_start IS
    'The billing period that the job is charged to, whenever it ends.';
COMMENT ON COLUMN weir_jobs.windows IS
    'The windows other than the month that the amount counts in, around reserved_at: 1 day, 2 hour, 4 minute.';
COMMENT ON COLUMN weir_jobs.from_grants IS
    'The part of reserved_amount that was drawn on grants.';
COMMENT ON COLUMN weir_jobs.overage IS
    'The part of reserved_amount that exceeded both the month''s limit and the grants.';
COMMENT ON COLUMN weir_jobs.admitted_at IS
    'Since when it holds a slot; null without one.';
COMMENT ON COLUMN weir_jobs.parked_at IS
    'Since when it waits for a slot; null when it does not.';
COMMENT ON COLUMN weir_jobs.due_at IS
    'When the job requests a slot; null when it has requested one, or will with its next attempt.';
COMMENT ON COLUMN weir_jobs.start_by IS
    'After this time no attempt starts, and a waiting job is cancelled; null: never.';
COMMENT ON COLUMN weir_jobs.progress IS
    'The last progress of the attempt: attempt, fraction, message.';

CREATE INDEX weir_jobs_of_holder ON weir_jobs (holder, job_id DESC);
CREATE UNIQUE INDEX weir_jobs_idempotency ON weir_jobs (holder, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX weir_jobs_unfinished ON weir_jobs (job_id) WHERE ended_at IS NULL;
CREATE INDEX weir_jobs_due_at ON weir_jobs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX weir_jobs_parked ON weir_jobs (holder, event_type, job_id) WHERE parked_at IS NOT NULL;
CREATE INDEX weir_jobs_scheduled ON weir_jobs (holder, event_type) WHERE due_at IS NOT NULL;
CREATE INDEX weir_jobs_start_by ON weir_jobs (start_by) WHERE start_by IS NOT NULL;
