-- Deletes windows shorter than a month that started short_window_lifetime() ago and have no reservations.
-- Parameters: $1 how many at most.
DELETE FROM window_balances b
USING (
    SELECT user_id, event_type, span, period_start FROM window_balances
    WHERE span <> 'month' AND period_start < now() - short_window_lifetime() AND reserved = 0
    ORDER BY period_start LIMIT $1 FOR UPDATE SKIP LOCKED
) o
WHERE b.user_id = o.user_id AND b.event_type = o.event_type AND b.span = o.span AND b.period_start = o.period_start
