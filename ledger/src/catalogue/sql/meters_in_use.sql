-- Those of these meters that somebody has used: whoever submits has a row in holders, and usage that was written by hand
-- or brought along from elsewhere is in the balances alone. $1 names.
SELECT u.event_type::text AS meter, count(*) AS holders, min(u.holder::text) AS example
FROM (
    SELECT h.event_type, h.holder FROM holders h WHERE h.event_type = ANY ($1::text[])
    UNION
    SELECT b.event_type, b.user_id FROM quota_balances b WHERE b.event_type = ANY ($1::text[]) AND b.used + b.reserved > 0
) u
GROUP BY 1
ORDER BY 1
