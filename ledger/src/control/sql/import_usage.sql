-- Writes the new usage events, each in its user's billing period around it. An event of the last day also counts in the
-- shorter windows. Events before $1 have no transaction: the usage feed skips them.
-- Parameters:
--
-- - $1: the time from which on usage is not billed yet (null: all usage is billed).
-- - $2: the reason of billed events.
-- - $3: the reason of others.
INSERT INTO usage_events (id, user_id, event_type, quota_amount, created_at, period_start, windows, reason, xid)
SELECT e.event_id, u.holder, e.event_type, e.quota_amount, e.created_at, p.period_start,
       CASE WHEN e.created_at > now() - interval '1 day' THEN c.counted ELSE 0 END,
       CASE WHEN e.created_at >= $1::timestamptz THEN $3 ELSE $2 END,
       CASE WHEN e.created_at >= $1::timestamptz THEN pg_current_xact_id() END
FROM pg_temp.import_usage e
JOIN pg_temp.import_users u ON u.id = e.user_id
CROSS JOIN LATERAL subscription_of(u.holder, now()) s
CROSS JOIN LATERAL billing_period(s.anchor, e.created_at) p
JOIN (SELECT l.event_type, max(l.counted) AS counted FROM plan_limits l GROUP BY 1) c ON c.event_type = e.event_type
WHERE e.is_new
ORDER BY u.holder, e.event_id
ON CONFLICT (id) DO NOTHING
