-- `weir status` shows which services have a live worker of another program.
ALTER TABLE processes ADD COLUMN queues text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN processes.queues IS
    'The queues that a worker in another language claims from with weir_claim.';
COMMENT ON COLUMN processes.pools IS
    'The number of workers by queue, and as weir_webhooks the number of those that deliver to each webhook.';
