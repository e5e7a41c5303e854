CREATE TABLE submissions (
    job_id bigint NOT NULL,
    holder uuid NOT NULL,
    user_id uuid,
    event_type usage_event_type NOT NULL,
    reserved_amount bigint NOT NULL,
    idempotency_key text,
    request_hash bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz,
    PRIMARY KEY (job_id)
);

COMMENT ON TABLE submissions IS
    'Accepted submissions: the holder of each job, and the job of each Idempotency-Key.';
COMMENT ON COLUMN submissions.job_id IS
    'The job in river_job.';
COMMENT ON COLUMN submissions.holder IS
    'The account that submitted it.';
COMMENT ON COLUMN submissions.user_id IS
    'The user; null for a client address.';
COMMENT ON COLUMN submissions.event_type IS
    'The meter.';
COMMENT ON COLUMN submissions.reserved_amount IS
    'The amount that it reserved, with later extensions.';
COMMENT ON COLUMN submissions.idempotency_key IS
    'The caller''s key; null without one, or after 24 hours.';
COMMENT ON COLUMN submissions.request_hash IS
    'Shows whether a repeated key came with the same request.';
COMMENT ON COLUMN submissions.created_at IS
    'When it was submitted.';
COMMENT ON COLUMN submissions.deleted_at IS
    'When the job ended without a charge, or Weir found that it was deleted.';

CREATE INDEX submissions_of_holder ON submissions (holder, job_id DESC);
CREATE UNIQUE INDEX submissions_idempotency ON submissions (holder, idempotency_key) WHERE idempotency_key IS NOT NULL;
