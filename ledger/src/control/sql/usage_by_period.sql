-- A user's usage by period and meter, newest first. One range of the user's balances. Months are kept without end, and
-- shorter windows for short_window_lifetime().
-- Parameters: $1 user, $2 the kind of period, $3 a meter or null for all, $4 how many.
SELECT b.event_type, b.period_start, b.used, b.reserved, b.from_grants,
       CASE b.span WHEN 'month' THEN (
                SELECT p.period_end
                FROM subscription_of(b.user_id, now()) s, billing_period(s.anchor, b.period_start) p)
            ELSE b.period_start + (SELECT w.length FROM short_windows() w WHERE w.span = b.span) END AS period_end
FROM quota_balances b
WHERE b.user_id = $1 AND b.span = $2 AND ($3::text IS NULL OR b.event_type = $3)
ORDER BY b.period_start DESC, b.event_type
LIMIT $4
