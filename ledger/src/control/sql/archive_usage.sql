-- Deletes usage events of periods that ended before a time, and leaves their sum for each user, meter and period. One
-- archiver runs at a time. Balances do not change. Parameters:
--
-- - $1 and $2: users and meters.
-- - $3: the time.
-- - $4: how many at most.
-- - $5: the reason that marks sums.
--
-- Keeps the events of jobs that can still be read, and of days, hours and minutes that still have a balance, because the
-- sum counts in the month alone.
-- Cost: index ranges of these users, and look-ups by key or place (ctid) for each event. OFFSET 0 and ctid prevent plans
-- that read whole tables.
WITH moved AS (
    DELETE FROM usage_events d
    WHERE d.ctid = ANY (ARRAY(
        SELECT e.place
        FROM unnest($1::uuid[], $2::usage_event_type[]) AS a (user_id, event_type)
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place, k.*
            FROM usage_events k
            WHERE k.user_id = a.user_id AND k.event_type = a.event_type AND k.created_at < $3
              AND k.period_start + interval '1 month' <= $3
              AND NOT (k.xid IS NULL AND k.job_id IS NULL AND k.reason IS NOT DISTINCT FROM $5)
              -- Another import must find them.
              AND NOT (k.job_id IS NULL AND coalesce(is_imported(k.reason), false))
              -- weir_charge() must find its own for as long as it accepts their times.
              AND NOT (k.job_id IS NULL AND k.reason IS NOT NULL AND coalesce(k.reserved_at > now() - interval '367 days', false))
            ORDER BY k.created_at
            OFFSET 0
        ) e
        WHERE NOT EXISTS (SELECT 1 FROM weir_jobs s WHERE s.job_id = e.job_id OFFSET 0)
          AND NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = e.job_id OFFSET 0)
          AND NOT (e.windows <> 0 AND EXISTS (
              SELECT 1 FROM window_balances b
              WHERE b.user_id = e.user_id AND b.event_type = e.event_type AND b.span <> 'month'
                AND b.period_start = date_trunc(b.span, coalesce(e.reserved_at, e.created_at), 'UTC')
              OFFSET 0))
        LIMIT $4))
    RETURNING d.*
), sums AS MATERIALIZED (
    SELECT n.*, (
        SELECT e.place
        -- OFFSET 0: an index of job_id would lead to all events without a job.
        FROM (
            SELECT k.ctid AS place, k.id, k.xid, k.job_id, k.reason FROM usage_events k
            WHERE k.user_id = n.user_id AND k.event_type = n.event_type AND k.created_at < $3
              AND k.period_start = n.period_start
            OFFSET 0
        ) e
        WHERE e.xid IS NULL AND e.job_id IS NULL AND e.reason = $5
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
    WHERE e.ctid = n.earlier
), made AS (
    -- Without a transaction, unlike every other event. This distinguishes a sum from an adjustment with the same
    -- reason.
    INSERT INTO usage_events (user_id, event_type, quota_amount, from_grants, overage, created_at, period_start, reason, xid)
    SELECT n.user_id, n.event_type, n.amount, n.from_grants, n.overage, n.created_at, n.period_start, $5, NULL
    FROM sums n
    WHERE n.earlier IS NULL
)
SELECT m.id, m.user_id, m.event_type, m.quota_amount, m.from_grants, m.overage, m.created_at, m.job_id, m.period_start, m.reason,
       (SELECT u.subject FROM users u WHERE u.id = m.user_id) AS subject
FROM moved m
ORDER BY m.user_id, m.event_type, m.created_at, m.id
