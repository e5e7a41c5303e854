-- The meters among these that are in use. Every submitter has a row in holders. Usage that was written by hand or
-- imported is only in the balances.
-- Parameters: $1 names.
SELECT u.event_type::text AS meter, count(*) AS holders, min(u.holder::text) AS example
FROM (
    SELECT h.event_type, h.holder FROM holders h WHERE h.event_type = ANY ($1::text[])
    UNION
    SELECT b.event_type, b.user_id FROM quota_balances b WHERE b.event_type = ANY ($1::text[]) AND b.used + b.reserved > 0
) u
GROUP BY 1
ORDER BY 1
