-- Deletes usage events of periods that ended before a time, and leaves their sum for each period. One archiver runs at
-- a time. Balances do not change. Parameters:
--
-- - $1: the user.
-- - $2: the meter.
-- - $3: the time.
-- - $4: how many at most.
-- - $5: the reason that marks sums.
--
-- Keeps the events of jobs that can still be read and of jobs that paid for a cached test. Also keeps the events of
-- days, hours and minutes that still have a balance, because the sum counts in the month alone.
WITH old AS (
    SELECT e.id
    FROM usage_events e
    WHERE e.user_id = $1 AND e.event_type = $2 AND e.created_at < $3 AND e.period_start + interval '1 month' <= $3
      AND NOT (e.xid IS NULL AND e.job_id IS NULL AND e.reason IS NOT DISTINCT FROM $5)
      -- Another import must find them.
      AND NOT (e.job_id IS NULL AND coalesce(is_imported(e.reason), false))
      AND NOT EXISTS (SELECT 1 FROM submissions s WHERE s.job_id = e.job_id)
      AND NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = e.job_id)
      AND NOT EXISTS (SELECT 1 FROM specview_cache c WHERE c.holder = e.user_id AND c.job_id = e.job_id)
      AND NOT (e.windows <> 0 AND EXISTS (
          SELECT 1 FROM quota_balances b
          WHERE b.user_id = e.user_id AND b.event_type = e.event_type AND b.span <> 'month'
            AND b.period_start = date_trunc(b.span, coalesce(e.reserved_at, e.created_at), 'UTC')))
    ORDER BY e.created_at
    LIMIT $4
), moved AS (
    DELETE FROM usage_events e USING old WHERE e.id = old.id
    RETURNING e.*
), sums AS MATERIALIZED (
    SELECT n.*, (
        SELECT e.id FROM usage_events e
        WHERE e.user_id = n.user_id AND e.event_type = n.event_type AND e.period_start = n.period_start
          AND e.xid IS NULL AND e.job_id IS NULL AND e.reason = $5
        ORDER BY e.id LIMIT 1
    ) AS earlier
    FROM (
        SELECT m.user_id, m.event_type, m.period_start, max(m.created_at) AS created_at,
               sum(m.quota_amount)::bigint AS amount, sum(m.from_grants)::bigint AS from_grants, sum(m.overage)::bigint AS overage
        FROM moved m
        GROUP BY 1, 2, 3
    ) n
), added AS (
    UPDATE usage_events e
    SET quota_amount = e.quota_amount + n.amount, from_grants = e.from_grants + n.from_grants, overage = e.overage + n.overage
    FROM sums n
    WHERE e.id = n.earlier
), made AS (
    -- Without a transaction, unlike every other event. This distinguishes a sum from an adjustment with the same
    -- reason.
    INSERT INTO usage_events (user_id, event_type, quota_amount, from_grants, overage, created_at, period_start, reason, xid)
    SELECT n.user_id, n.event_type, n.amount, n.from_grants, n.overage, n.created_at, n.period_start, $5, NULL
    FROM sums n
    WHERE n.earlier IS NULL
)
SELECT m.id, m.user_id, m.event_type, m.quota_amount, m.from_grants, m.overage, m.created_at, m.job_id, m.period_start, m.reason, u.subject
FROM moved m
LEFT JOIN users u ON u.id = m.user_id
ORDER BY m.created_at, m.id
