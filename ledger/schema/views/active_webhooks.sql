-- The webhooks that were not removed. Events of disabled ones wait until they are enabled again, for up to a week.
CREATE OR REPLACE VIEW active_webhooks AS
SELECT w.id, w.url, w.events, w.thresholds,
       w.events && ARRAY['quota.threshold', 'quota.renewed'] AS has_thresholds,
       w.secret, w.previous_secret, w.previous_until, w.older_secret
FROM webhooks w
WHERE w.removed_at IS NULL;

COMMENT ON VIEW active_webhooks IS
    'The webhooks that were not removed. Events of disabled ones wait until they are enabled again, for up to a week.';
COMMENT ON COLUMN active_webhooks.has_thresholds IS
    'Whether it receives an event about a threshold.';
