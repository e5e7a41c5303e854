-- The key with this hash.
-- Parameters: $1 hash. Writes the last use at most once a minute, and only for one of several concurrent uses.
WITH found AS (
    SELECT *, coalesce(expires_at <= now(), false) AS is_over FROM service_keys WHERE secret_hash = $1
), due AS (
    SELECT k.name
    FROM service_keys k
    JOIN found f ON f.name = k.name
    WHERE f.revoked_at IS NULL AND NOT f.is_over
      AND (k.last_used_at IS NULL OR k.last_used_at < now() - interval '1 minute')
    FOR NO KEY UPDATE OF k SKIP LOCKED
), used AS (
    UPDATE service_keys k SET last_used_at = now() FROM due d WHERE k.name = d.name
)
SELECT * FROM found
