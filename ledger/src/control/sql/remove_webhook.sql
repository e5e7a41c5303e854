-- Removes a webhook and deletes its secrets. The row stays, because transactions that started before the removal
-- may still emit events to its queue.
-- Parameters: $1 webhook. Looks up the row by key.
UPDATE webhooks
SET removed_at = clock_timestamp(), secret = NULL, previous_secret = NULL, older_secret = NULL, previous_until = NULL
WHERE id = $1
