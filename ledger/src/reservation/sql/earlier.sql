-- Earlier submissions with the same Idempotency-Key, of the last 24 hours. $1 holders, $2 keys, pairwise.
SELECT s.holder, s.idempotency_key, s.request_hash, s.job_id
FROM unnest($1::uuid[], $2::text[]) AS w (holder, idempotency_key)
JOIN submissions s ON s.holder = w.holder AND s.idempotency_key = w.idempotency_key
WHERE s.created_at > now() - interval '24 hours'
