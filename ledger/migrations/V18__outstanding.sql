-- Attempts whose handler answers later. While its answer is outstanding, the job is River's `pending`, which no River
-- client claims, rescues or ends; so the attempt outlives the process that began it, and this row is all there is of it.
CREATE TABLE outstanding_attempts (
    job_id bigint PRIMARY KEY,
    claim text NOT NULL,
    patience interval NOT NULL CHECK (patience > interval '0'),
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deadline_at timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE outstanding_attempts IS 'attempts whose handler answers later';
COMMENT ON COLUMN outstanding_attempts.claim IS 'which attempt, as claim_of() has it';
COMMENT ON COLUMN outstanding_attempts.patience IS 'for how long the handler may say nothing';
COMMENT ON COLUMN outstanding_attempts.began_at IS 'when the handler said that it answers later';
COMMENT ON COLUMN outstanding_attempts.deadline_at IS 'when the attempt is taken back, unless the handler says something';
CREATE INDEX outstanding_attempts_deadline ON outstanding_attempts (deadline_at);

-- Which attempt at a job it is. The number alone does not tell: one that was broken off by its process's end is begun again
-- under the same number.
CREATE FUNCTION claim_of(attempt smallint, attempted_by text[]) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT concat(attempt, '.', coalesce(cardinality(attempted_by), 0)) $$;
