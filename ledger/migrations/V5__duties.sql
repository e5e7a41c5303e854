-- River's leader may be another program's client. It takes a job for stuck that has been running for longer than that
-- program's jobs do, by attempted_at; so a process moves attempted_at of its long attempts forward, as a sign of life,
-- and when the attempt started is in the job's metadata, with the claim that it is true of.
CREATE FUNCTION attempt_started_at(metadata jsonb, attempt smallint, attempted_by text[], attempted_at timestamptz)
RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN metadata #>> '{weir:started,claim}' = concat(attempt, '.', cardinality(attempted_by))
                THEN (metadata #>> '{weir:started,at}')::timestamptz
                ELSE attempted_at END
$$;

-- Every tick of a periodic job is enqueued once, whoever does it: by whom this row is moved on.
CREATE TABLE periodic_jobs (
    id text PRIMARY KEY,
    enqueued_until timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON COLUMN periodic_jobs.id IS 'as in the services file';
COMMENT ON COLUMN periodic_jobs.enqueued_until IS 'the last tick that was enqueued, or when the first one was waited for';

-- Which process does the duties of all: reconciliation, expiry, cleaning. It says so every few seconds.
CREATE TABLE duties (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    process text NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
COMMENT ON COLUMN duties.process IS 'host and process id';
COMMENT ON COLUMN duties.done_at IS 'its last round; long ago is nobody';
