-- A key is free again after 24 hours. $1 holders, $2 keys, pairwise.
UPDATE submissions s
SET idempotency_key = NULL
FROM unnest($1::uuid[], $2::text[]) AS w (holder, idempotency_key)
WHERE s.holder = w.holder AND s.idempotency_key = w.idempotency_key AND s.created_at <= now() - interval '24 hours'
