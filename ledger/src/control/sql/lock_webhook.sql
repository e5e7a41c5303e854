-- Locks a webhook that was not removed. Does not read its deliveries: there may be millions.
-- Parameters: $1 webhook. Looks up the row by key.
SELECT id, url, events, thresholds, created_at, disabled_at, disabled_because,
       CASE WHEN previous_until > now() THEN previous_until END AS previous_until
FROM webhooks
WHERE id = $1 AND removed_at IS NULL
FOR NO KEY UPDATE
