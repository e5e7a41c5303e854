-- One row per job: `submissions` and `quota_reservations` become `weir_jobs`. A view has the reservations' name.
DROP VIEW reserved_amounts;
ALTER TABLE submissions RENAME TO weir_jobs;
ALTER TABLE weir_jobs RENAME CONSTRAINT submissions_pkey TO weir_jobs_pkey;
ALTER INDEX submissions_of_holder RENAME TO weir_jobs_of_holder;
ALTER INDEX submissions_idempotency RENAME TO weir_jobs_idempotency;
ALTER TABLE weir_jobs RENAME COLUMN created_at TO submitted_at;
ALTER TABLE weir_jobs ALTER submitted_at DROP NOT NULL;
ALTER TABLE weir_jobs ALTER submitted_at DROP DEFAULT;
-- A default adds a column without writing the rows. Most jobs have ended.
ALTER TABLE weir_jobs
    ADD ended_at timestamptz DEFAULT now(),
    ADD reserved_at timestamptz NOT NULL DEFAULT now(),
    ADD expires_at timestamptz NOT NULL DEFAULT (now() + interval '1 hour'),
    ADD period_start timestamptz,
    ADD windows smallint NOT NULL DEFAULT 0,
    ADD from_grants bigint NOT NULL DEFAULT 0,
    ADD overage bigint NOT NULL DEFAULT 0,
    ADD admitted_at timestamptz,
    ADD parked_at timestamptz,
    ADD due_at timestamptz,
    ADD start_by timestamptz,
    ADD progress jsonb;
ALTER TABLE weir_jobs ALTER ended_at DROP DEFAULT;
INSERT INTO weir_jobs AS j
    (job_id, holder, user_id, event_type, reserved_amount, reserved_at, expires_at, period_start, windows, from_grants,
     overage, admitted_at, parked_at, due_at, start_by, progress)
SELECT job_id, holder, user_id, event_type, reserved_amount, created_at, expires_at, period_start, windows, from_grants,
       overage, admitted_at, parked_at, due_at, start_by, progress
FROM quota_reservations
ON CONFLICT (job_id) DO UPDATE
SET ended_at = NULL, reserved_amount = excluded.reserved_amount, reserved_at = excluded.reserved_at,
    expires_at = excluded.expires_at, period_start = excluded.period_start, windows = excluded.windows,
    from_grants = excluded.from_grants, overage = excluded.overage, admitted_at = excluded.admitted_at,
    parked_at = excluded.parked_at, due_at = excluded.due_at, start_by = excluded.start_by,
    progress = excluded.progress;
DROP TABLE quota_reservations;
DROP FUNCTION emit_job_ends();
DROP FUNCTION fill_quota_row();
-- Only processes of the previous release used these.
DROP VIEW active_webhooks;
DROP TABLE specview_cache;
ALTER TABLE weir_jobs
    ADD CONSTRAINT weir_jobs_state CHECK (num_nonnulls(admitted_at, parked_at, due_at) <= (ended_at IS NULL)::int),
    ADD CONSTRAINT weir_jobs_reserved_amount_check CHECK (reserved_amount >= 0);
ALTER TABLE weir_jobs SET (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX weir_jobs_unfinished ON weir_jobs (job_id) WHERE ended_at IS NULL;
CREATE INDEX weir_jobs_due_at ON weir_jobs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX weir_jobs_parked ON weir_jobs (holder, event_type, job_id) WHERE parked_at IS NOT NULL;
CREATE INDEX weir_jobs_scheduled ON weir_jobs (holder, event_type) WHERE due_at IS NOT NULL;
CREATE INDEX weir_jobs_start_by ON weir_jobs (start_by) WHERE start_by IS NOT NULL;
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
