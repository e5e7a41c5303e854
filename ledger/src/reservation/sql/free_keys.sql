-- Frees keys after key_lifetime().
-- Parameters: $1 holders, $2 keys, pairwise.
UPDATE submissions s
SET idempotency_key = NULL
WHERE s.job_id = ANY (ARRAY(
    SELECT e.job_id
    FROM unnest($1::uuid[], $2::text[]) AS w (holder, idempotency_key)
    CROSS JOIN LATERAL (
        SELECT o.job_id
        FROM submissions o
        WHERE o.holder = w.holder AND o.idempotency_key = w.idempotency_key AND o.created_at <= now() - key_lifetime()
        OFFSET 0
    ) e
))
