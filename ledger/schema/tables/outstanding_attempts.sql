CREATE TABLE outstanding_attempts (
    job_id bigint NOT NULL,
    claim text NOT NULL,
    patience interval NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deadline_at timestamptz NOT NULL,
    PRIMARY KEY (job_id),
    CONSTRAINT outstanding_attempts_patience_check CHECK (patience > interval '0')
) WITH (fillfactor = 50);

COMMENT ON TABLE outstanding_attempts IS
    'Attempts that answer later. The job is in River''s state pending, so no River client claims, rescues or ends it. The attempt outlives the process that started it.';
COMMENT ON COLUMN outstanding_attempts.job_id IS
    'The job that waits for its answer.';
COMMENT ON COLUMN outstanding_attempts.claim IS
    'The attempt, as claim_of() returns it.';
COMMENT ON COLUMN outstanding_attempts.patience IS
    'The maximum time between two reports of the handler.';
COMMENT ON COLUMN outstanding_attempts.began_at IS
    'When the handler announced a later answer.';
COMMENT ON COLUMN outstanding_attempts.deadline_at IS
    'When the attempt is taken over, unless the handler reports before.';

CREATE INDEX outstanding_attempts_deadline ON outstanding_attempts (deadline_at);
