CREATE TABLE duties (
    one boolean NOT NULL DEFAULT true,
    process text NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at timestamptz DEFAULT clock_timestamp(),
    backend int,
    backend_start timestamptz,
    expires_at timestamptz,
    xid xid8,
    PRIMARY KEY (one),
    CONSTRAINT duties_one_check CHECK (one)
) WITH (fillfactor = 50);

COMMENT ON TABLE duties IS
    'The lease of the process that runs maintenance. One row.';
COMMENT ON COLUMN duties.process IS
    'Host name and process id.';
COMMENT ON COLUMN duties.since IS
    'When this process took the lease.';
COMMENT ON COLUMN duties.done_at IS
    'When it last renewed the lease; null when no process has done a round yet.';
COMMENT ON COLUMN duties.backend IS
    'The process id, in PostgreSQL, of the session that holds the lease.';
COMMENT ON COLUMN duties.backend_start IS
    'When that session started, since process ids are used again.';
COMMENT ON COLUMN duties.expires_at IS
    'When the lease expires, unless it is renewed.';
COMMENT ON COLUMN duties.xid IS
    'The oldest open transaction when the lease was last renewed.';
