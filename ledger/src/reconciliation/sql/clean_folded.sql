-- Deletes the keys of folded submissions an hour after they have expired.
-- Parameters: $1 how many at most.
DELETE FROM folded_submissions f
USING (
    SELECT holder, idempotency_key FROM folded_submissions
    WHERE created_at < now() - key_lifetime() - interval '1 hour' ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED
) o
WHERE f.holder = o.holder AND f.idempotency_key = o.idempotency_key
