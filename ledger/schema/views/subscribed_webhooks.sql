-- The webhooks that were not removed. Events of disabled ones wait until they are enabled again, for up to a week.
CREATE OR REPLACE VIEW subscribed_webhooks AS
SELECT w.id, w.events, w.thresholds, w.events && ARRAY['quota.threshold', 'quota.renewed'] AS has_thresholds
FROM webhooks w
WHERE w.removed_at IS NULL;

COMMENT ON VIEW subscribed_webhooks IS
    'The webhooks that were not removed. Events of disabled ones wait until they are enabled again, for up to a week.';
COMMENT ON COLUMN subscribed_webhooks.has_thresholds IS
    'Whether it receives an event about a threshold.';
