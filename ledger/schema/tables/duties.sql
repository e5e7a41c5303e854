CREATE TABLE duties (
    one boolean NOT NULL DEFAULT true,
    process text NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (one),
    CONSTRAINT duties_one_check CHECK (one)
) WITH (fillfactor = 50);

COMMENT ON TABLE duties IS
    'Which process runs maintenance. One row.';
COMMENT ON COLUMN duties.process IS
    'Host name and process id.';
COMMENT ON COLUMN duties.since IS
    'When this process took over.';
COMMENT ON COLUMN duties.done_at IS
    'When its last round ended. Long ago: no process runs maintenance.';
