-- The URL and the secrets of a webhook that is neither disabled nor removed.
-- Parameters: $1 webhook. Looks up the row by key.
SELECT url, secret, CASE WHEN previous_until > now() THEN previous_secret END AS previous,
       CASE WHEN previous_until > now() THEN older_secret END AS older
FROM active_webhooks
WHERE id = $1
