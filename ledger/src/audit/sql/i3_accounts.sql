-- Charges and reservations with another account or amount than their job's submission. A job that was charged and runs
-- again reserves nothing.
SELECT format('job %s: charged to user %s, %s, submitted by user %s, %s', s.job_id, u.user_id, u.event_type, s.user_id,
              s.event_type)
FROM submissions s
JOIN usage_events u ON u.job_id = s.job_id
WHERE u.user_id IS DISTINCT FROM s.user_id OR u.event_type <> s.event_type
UNION ALL
-- A job counts in the period of its submission, or in a later one until its charge if an operator retried it. A later
-- change of the paid month may have moved the charge.
SELECT format('job %s: submitted at %s, charged at %s in the period from %s', s.job_id, s.created_at, u.created_at, u.period_start)
FROM submissions s
JOIN usage_events u ON u.job_id = s.job_id
CROSS JOIN LATERAL subscription_of(s.user_id, now()) k
CROSS JOIN LATERAL billing_period(k.anchor, u.period_start) p
WHERE u.created_at >= s.created_at
  AND (p.period_start <> u.period_start OR p.period_start > u.created_at OR p.period_end <= s.created_at)
  AND EXISTS (SELECT 1 FROM users o WHERE o.id = s.user_id)
  AND NOT EXISTS (SELECT 1 FROM user_subscriptions k WHERE k.user_id = s.user_id AND k.updated_at >= s.created_at)
UNION ALL
SELECT format('job %s: reserved %s for holder %s, user %s, %s, submitted %s for holder %s, user %s, %s', s.job_id,
              r.reserved_amount, r.holder, r.user_id, r.event_type, s.reserved_amount, s.holder, s.user_id, s.event_type)
FROM submissions s
JOIN quota_reservations r ON r.job_id = s.job_id
WHERE (r.holder, r.event_type) IS DISTINCT FROM (s.holder, s.event_type) OR r.user_id IS DISTINCT FROM s.user_id
   OR r.reserved_amount <> s.reserved_amount AND NOT EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = s.job_id)
LIMIT $1
