SELECT w.holder, s.job_id
FROM unnest($1::uuid[]) AS w (holder)
CROSS JOIN LATERAL (SELECT job_id FROM weir_jobs WHERE holder = w.holder AND submitted_at IS NOT NULL ORDER BY job_id DESC LIMIT $2) AS s
