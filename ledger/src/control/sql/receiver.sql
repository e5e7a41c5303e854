-- The URL and the secrets of a webhook that was not removed.
-- Parameters: $1 webhook. Looks up the row by key.
SELECT url, disabled_at IS NOT NULL AS is_disabled, secret,
       CASE WHEN previous_until > now() THEN previous_secret END AS previous,
       CASE WHEN previous_until > now() THEN older_secret END AS older
FROM webhooks
WHERE id = $1 AND removed_at IS NULL
