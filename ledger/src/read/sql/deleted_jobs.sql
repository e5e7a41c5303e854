-- The remaining data of deleted jobs, with the columns of job_view.sql. A charged job was completed.
-- Parameters: $1 holder, $2 job ids, $3 the service's kind, $4 its max_attempts.
SELECT s.job_id AS id, $3::text AS kind, CASE WHEN u.job_id IS NULL THEN 'cancelled' ELSE 'completed' END AS state,
       '' AS queue, 0::smallint AS attempt, $4::smallint AS max_attempts, s.submitted_at AS created_at,
       NULL::timestamptz AS attempted_at, u.created_at AS finalized_at, false AS later,
       CASE WHEN u.job_id IS NULL THEN 'the job was deleted' END AS error, NULL::jsonb AS output, false AS parked,
       false AS lent, NULL::timestamptz AS expires_at, NULL::jsonb AS progress, 0::bigint AS reserved, s.ended_at IS NOT NULL AS settled,
       coalesce(u.quota_amount, 0) AS charged,
       (SELECT t.tier FROM tier_of(s.user_id, now()) t) AS plan
FROM weir_jobs s
LEFT JOIN usage_events u ON u.job_id = s.job_id
WHERE s.holder = $1 AND s.submitted_at IS NOT NULL AND s.job_id = ANY ($2)
  AND NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = s.job_id)
  AND NOT EXISTS (SELECT 1 FROM finished_jobs f WHERE f.job_id = s.job_id)
