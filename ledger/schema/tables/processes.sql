CREATE TABLE processes (
    client_id text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    beat_at timestamptz NOT NULL DEFAULT now(),
    pools jsonb NOT NULL DEFAULT '{}',
    queues text[] NOT NULL DEFAULT '{}',
    lends jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (client_id)
) WITH (fillfactor = 70);

COMMENT ON TABLE processes IS
    'The running processes that work jobs: Weir''s, and workers in other languages that call weir_heartbeat().';
COMMENT ON COLUMN processes.client_id IS
    'The River client id, as in river_job.attempted_by. Only those of Weir''s processes start with weir_.';
COMMENT ON COLUMN processes.started_at IS
    'When the process started.';
COMMENT ON COLUMN processes.beat_at IS
    'The last heartbeat. Other processes take over the jobs of a process without one.';
COMMENT ON COLUMN processes.pools IS
    'The number of workers by queue, and as weir_webhooks the number of those that deliver to each webhook.';
COMMENT ON COLUMN processes.queues IS
    'The queues that a worker in another language claims from with weir_claim.';
COMMENT ON COLUMN processes.lends IS
    'The number of workers by queue that may be lent.';
