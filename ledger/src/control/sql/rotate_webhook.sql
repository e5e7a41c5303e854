-- Creates a new secret for a webhook. The previous one also signs for some time, and so does an older one that still
-- signs. Parameters: $1 webhook, $2 secret, $3 seconds for which the previous secret signs. Looks up the row by key.
UPDATE webhooks
SET older_secret = CASE WHEN previous_until > clock_timestamp() THEN previous_secret END,
    previous_secret = secret, previous_until = clock_timestamp() + make_interval(secs => $3), secret = $2
WHERE id = $1
