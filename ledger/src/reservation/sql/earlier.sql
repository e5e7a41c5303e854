-- Earlier submissions with the same Idempotency-Key, within key_lifetime().
-- Parameters: $1 holders, $2 keys, pairwise.
SELECT w.holder, w.idempotency_key, s.request_hash, s.job_id
FROM unnest($1::uuid[], $2::text[]) AS w (holder, idempotency_key)
CROSS JOIN LATERAL (
    SELECT e.request_hash, e.job_id
    FROM submissions e
    WHERE e.holder = w.holder AND e.idempotency_key = w.idempotency_key AND e.created_at > now() - key_lifetime()
    OFFSET 0
) s
