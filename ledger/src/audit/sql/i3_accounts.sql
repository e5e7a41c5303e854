-- Charges to another account than that of their job.
SELECT format('job %s: charged to user %s, %s, submitted by user %s, %s', s.job_id, u.user_id, u.event_type, s.user_id,
              s.event_type)
FROM weir_jobs s
JOIN usage_events u ON u.job_id = s.job_id
WHERE u.user_id IS DISTINCT FROM s.user_id OR u.event_type <> s.event_type
UNION ALL
-- A job counts in the period of its submission, or in a later one until its charge if an operator retried it. A later
-- change of the paid month may have moved the charge. If the clock is set back while a submission waits for a lock, its
-- reservation is earlier than the start of its transaction, and decides.
SELECT format('job %s: submitted at %s, charged at %s in the period from %s', s.job_id, s.submitted_at, u.created_at, u.period_start)
FROM weir_jobs s
JOIN usage_events u ON u.job_id = s.job_id
CROSS JOIN LATERAL subscription_of(s.user_id, now()) k
CROSS JOIN LATERAL billing_period(k.anchor, u.period_start) p
WHERE u.created_at >= s.submitted_at
  AND (p.period_start <> u.period_start OR p.period_start > u.created_at OR p.period_end <= least(s.submitted_at, s.reserved_at))
  AND EXISTS (SELECT 1 FROM users o WHERE o.id = s.user_id)
  AND NOT EXISTS (SELECT 1 FROM user_subscriptions k WHERE k.user_id = s.user_id AND k.updated_at >= s.submitted_at)
LIMIT $1
