-- Results for as long as the plan says. River deletes finished jobs when its own time is over, and its indexes of
-- metadata grow with every output that is in there.

-- Outputs too large for the job's metadata.
CREATE TABLE job_outputs (
    job_id bigint PRIMARY KEY,
    output jsonb NOT NULL
);
COMMENT ON TABLE job_outputs IS 'outputs of more than 4 KiB; smaller ones are in river_job.metadata, under output';

-- Users' finished jobs, for when River has deleted its own.
CREATE TABLE finished_jobs (
    job_id bigint PRIMARY KEY,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    kind text NOT NULL,
    state text NOT NULL CHECK (state IN ('completed', 'cancelled', 'discarded')),
    queue text NOT NULL,
    attempt smallint NOT NULL,
    max_attempts smallint NOT NULL,
    created_at timestamptz NOT NULL,
    attempted_at timestamptz,
    finalized_at timestamptz NOT NULL,
    error text,
    output jsonb,
    review_at timestamptz NOT NULL
);
CREATE INDEX finished_jobs_user ON finished_jobs (user_id);
CREATE INDEX finished_jobs_review ON finished_jobs (review_at);
COMMENT ON TABLE finished_jobs IS 'users'' finished jobs for as long as their plans keep results';
COMMENT ON COLUMN finished_jobs.output IS 'null, too, when it is in job_outputs';
COMMENT ON COLUMN finished_jobs.review_at IS
    'when the job is deleted, unless the plan of that time keeps it for longer; at most 30 days after the last look';

-- What a job made, wherever it is by now.
CREATE FUNCTION output_of(job_id bigint) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT j.metadata -> 'output' FROM river_job j WHERE j.id = output_of.job_id),
        (SELECT o.output FROM job_outputs o WHERE o.job_id = output_of.job_id),
        (SELECT f.output FROM finished_jobs f WHERE f.job_id = output_of.job_id))
$$;

-- As before, with large outputs in their own table.
CREATE OR REPLACE FUNCTION weir_complete(job_id bigint, attempt int, output jsonb DEFAULT NULL, used bigint DEFAULT NULL,
                              OUT outcome text, OUT charged bigint)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    books CONSTANT text := coalesce(current_setting('weir.books', true), '');
    bytes CONSTANT int := coalesce(octet_length(output::text), 0);
    locked record;
BEGIN
    PERFORM need_read_committed('weir_complete');
    IF bytes > 4194304 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the output is larger than 4 MiB',
            HINT = 'store it elsewhere and complete the job with where it is';
    END IF;
    SELECT * INTO locked FROM lock_holder_of(weir_complete.job_id);
    PERFORM set_config('weir.books', 'kept', true);
    -- As River's JobCompleteTx does it, but only the attempt that did the work.
    UPDATE river_job j
    SET state = 'completed', finalized_at = clock_timestamp(),
        metadata = j.metadata || jsonb_strip_nulls(jsonb_build_object('weir:used', weir_complete.used))
            || CASE WHEN output <> 'null' AND bytes <= 4096 THEN jsonb_build_object('output', output) ELSE '{}' END,
        attempted_at = attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at)
    WHERE j.id = weir_complete.job_id AND j.attempt = weir_complete.attempt AND (j.state = 'running') IS TRUE;
    IF FOUND THEN
        outcome := 'done';
        IF bytes > 4096 THEN
            INSERT INTO job_outputs AS o (job_id, output) VALUES (weir_complete.job_id, weir_complete.output)
            ON CONFLICT (job_id) DO UPDATE SET output = excluded.output;
        END IF;
        charged := end_reservation(weir_complete.job_id, locked.holder, true, weir_complete.used);
    ELSE
        outcome := 'fenced_out';
        charged := 0;
    END IF;
    PERFORM set_config('weir.books', books, true);
END
$$;
