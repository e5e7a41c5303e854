-- The webhooks that are neither disabled nor removed. Only workers of release 0.1.0 read it, during an upgrade.
CREATE OR REPLACE VIEW active_webhooks AS
SELECT w.id, w.url, w.events, w.thresholds,
       w.events && ARRAY['quota.threshold', 'quota.renewed'] AS has_thresholds,
       w.secret, w.previous_secret, w.previous_until, w.older_secret
FROM webhooks w
WHERE w.disabled_at IS NULL AND w.removed_at IS NULL;

COMMENT ON VIEW active_webhooks IS
    'The webhooks that are neither disabled nor removed, for workers of release 0.1.0.';
COMMENT ON COLUMN active_webhooks.has_thresholds IS
    'Whether it receives an event about a threshold.';
