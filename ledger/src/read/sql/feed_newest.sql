SELECT w.holder, s.job_id
FROM unnest($1::uuid[]) AS w (holder)
CROSS JOIN LATERAL (SELECT job_id FROM submissions WHERE holder = w.holder ORDER BY job_id DESC LIMIT $2) AS s
