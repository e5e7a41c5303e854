-- Those of these meters that somebody has used: whoever submits has a row in holders. $1 names.
SELECT h.event_type::text AS meter, count(*) AS holders, min(h.holder::text) AS example
FROM holders h
WHERE h.event_type = ANY ($1::text[])
GROUP BY 1
ORDER BY 1
