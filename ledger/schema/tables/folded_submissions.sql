CREATE TABLE folded_submissions (
    holder uuid NOT NULL,
    idempotency_key text NOT NULL,
    request_hash bytea NOT NULL,
    job_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (holder, idempotency_key)
);

COMMENT ON TABLE folded_submissions IS
    'The Idempotency-Keys of submissions that were folded into an existing job.';
COMMENT ON COLUMN folded_submissions.holder IS
    'The account that submitted it.';
COMMENT ON COLUMN folded_submissions.idempotency_key IS
    'The caller''s key. It is deleted after 24 hours.';
COMMENT ON COLUMN folded_submissions.request_hash IS
    'Shows whether a repeated key came with the same request.';
COMMENT ON COLUMN folded_submissions.job_id IS
    'The existing job.';
COMMENT ON COLUMN folded_submissions.created_at IS
    'When it was submitted.';

CREATE INDEX folded_submissions_by_age ON folded_submissions (created_at);
