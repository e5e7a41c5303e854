-- Trigger of usage_events: keeps used equal to the usage events that operators, imports and other programs write.
-- Weir's own statements update the counters themselves. weir.counters is the trigger depth at which they run, so the
-- rows of triggers that they fire count. Processes of the previous release set it to `kept`, which turns counting off.
-- Errors: 23503 for a name that is not a meter.
-- Cost: one look-up and one write for each account and window of the statement's rows. Waits for the locks of their
-- holders.
CREATE OR REPLACE FUNCTION count_usage_events() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM lock_holders(ARRAY(SELECT DISTINCT user_id FROM old_rows));
        UPDATE quota_balances b SET used = b.used - o.amount, from_grants = b.from_grants - o.from_grants
        FROM (SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.quota_amount) AS amount,
                     coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0) AS from_grants
              FROM old_rows r
              CROSS JOIN LATERAL windows_of(r.period_start, r.windows, coalesce(r.reserved_at, r.created_at)) w
              GROUP BY 1, 2, 3, 4) o
        WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, o.span, o.period_start);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM require_meters(ARRAY(SELECT DISTINCT event_type::text FROM new_rows));
        PERFORM lock_holders(ARRAY(SELECT DISTINCT user_id FROM new_rows));
        INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, used, from_grants)
        SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.quota_amount),
               coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0)
        FROM new_rows r
        CROSS JOIN LATERAL windows_of(r.period_start, r.windows, coalesce(r.reserved_at, r.created_at)) w
        GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (user_id, event_type, span, period_start)
            DO UPDATE SET used = b.used + excluded.used, from_grants = b.from_grants + excluded.from_grants;
    END IF;
    RETURN NULL;
END
$$;
