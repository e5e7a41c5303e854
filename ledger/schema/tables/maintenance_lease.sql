CREATE TABLE maintenance_lease (
    one boolean NOT NULL DEFAULT true,
    process text NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at timestamptz DEFAULT clock_timestamp(),
    backend int,
    backend_start timestamptz,
    expires_at timestamptz,
    xid xid8,
    PRIMARY KEY (one),
    CONSTRAINT maintenance_lease_one_check CHECK (one)
) WITH (fillfactor = 50);

COMMENT ON TABLE maintenance_lease IS
    'The lease of the process that runs maintenance. One row.';
COMMENT ON COLUMN maintenance_lease.one IS
    'Always true: there is one row.';
COMMENT ON COLUMN maintenance_lease.process IS
    'Host name and process id.';
COMMENT ON COLUMN maintenance_lease.since IS
    'When this process took the lease.';
COMMENT ON COLUMN maintenance_lease.done_at IS
    'When it last renewed the lease; null when no process has done a round yet.';
COMMENT ON COLUMN maintenance_lease.backend IS
    'The process id, in PostgreSQL, of the session that holds the lease.';
COMMENT ON COLUMN maintenance_lease.backend_start IS
    'When that session started, since process ids are used again.';
COMMENT ON COLUMN maintenance_lease.expires_at IS
    'When the lease expires, unless it is renewed.';
COMMENT ON COLUMN maintenance_lease.xid IS
    'The oldest open transaction when the lease was last renewed.';
