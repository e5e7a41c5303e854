-- Gives the new users calendar months.
UPDATE user_subscriptions s
SET current_period_start = m.start, current_period_end = m.start + interval '1 month'
FROM pg_temp.import_users u
CROSS JOIN (SELECT date_trunc('month', now(), 'UTC') AS start) m
WHERE u.is_new AND s.user_id = u.holder AND s.status = 'active'
