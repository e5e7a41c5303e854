CREATE TABLE periodic_jobs (
    id text NOT NULL,
    enqueued_until timestamptz NOT NULL,
    PRIMARY KEY (id)
) WITH (fillfactor = 50);

COMMENT ON TABLE periodic_jobs IS
    'The last tick of each periodic job. The process that advances the row enqueues the tick, so each tick is enqueued once.';
COMMENT ON COLUMN periodic_jobs.id IS
    'The name in the services file.';
COMMENT ON COLUMN periodic_jobs.enqueued_until IS
    'The last tick that was enqueued, or the time from which the first tick is due.';
