CREATE TABLE finished_jobs (
    job_id bigint NOT NULL,
    user_id uuid NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    queue text NOT NULL,
    attempt smallint NOT NULL,
    max_attempts smallint NOT NULL,
    created_at timestamptz NOT NULL,
    attempted_at timestamptz,
    finalized_at timestamptz NOT NULL,
    error text,
    output jsonb,
    review_at timestamptz NOT NULL,
    PRIMARY KEY (job_id),
    CONSTRAINT finished_jobs_state_check CHECK (state IN ('completed', 'cancelled', 'discarded')),
    FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

COMMENT ON TABLE finished_jobs IS
    'Finished jobs of users, for as long as their plans keep results. River deletes its own rows earlier.';
COMMENT ON COLUMN finished_jobs.job_id IS
    'The job''s id in river_job.';
COMMENT ON COLUMN finished_jobs.user_id IS
    'The job''s user.';
COMMENT ON COLUMN finished_jobs.kind IS
    'River''s kind of the job.';
COMMENT ON COLUMN finished_jobs.state IS
    'The state in which it ended: completed, cancelled or discarded.';
COMMENT ON COLUMN finished_jobs.queue IS
    'The queue of its last attempt.';
COMMENT ON COLUMN finished_jobs.attempt IS
    'The number of attempts.';
COMMENT ON COLUMN finished_jobs.max_attempts IS
    'The maximum number of attempts.';
COMMENT ON COLUMN finished_jobs.created_at IS
    'When it was submitted.';
COMMENT ON COLUMN finished_jobs.attempted_at IS
    'When its last attempt started.';
COMMENT ON COLUMN finished_jobs.finalized_at IS
    'When it ended.';
COMMENT ON COLUMN finished_jobs.error IS
    'The error that the owner sees; null for a completed job.';
COMMENT ON COLUMN finished_jobs.output IS
    'The output; null also when it is in job_outputs.';
COMMENT ON COLUMN finished_jobs.review_at IS
    'When to delete the job, unless the plan at that time keeps it longer. At most 30 days after the last review.';

CREATE INDEX finished_jobs_review ON finished_jobs (review_at);
CREATE INDEX finished_jobs_user ON finished_jobs (user_id);
