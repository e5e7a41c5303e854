-- Trigger of quota_reservations: keeps slots_in_use, parked and reserved equal to the reservations that operators,
-- imports and other programs write. Weir's own statements update the counters themselves: see count_usage_events().
-- Errors: 23503 for a name that is not a meter.
-- Cost: one look-up and one write for each account and window of the statement's rows. Waits for the locks of their
-- holders.
CREATE OR REPLACE FUNCTION count_reservations() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM lock_holders(ARRAY(SELECT DISTINCT holder FROM old_rows));
        UPDATE holders h SET slots_in_use = h.slots_in_use - o.slots, parked = h.parked - o.parked
        FROM (SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked
              FROM old_rows GROUP BY 1, 2) o
        WHERE (h.holder, h.event_type) = (o.holder, o.event_type);
        UPDATE quota_balances b SET reserved = b.reserved - o.amount, from_grants = b.from_grants - o.from_grants
        FROM (SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.reserved_amount) AS amount,
                     coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0) AS from_grants
              FROM old_rows r
              CROSS JOIN LATERAL windows_of(r.period_start, r.windows, r.created_at) w
              WHERE r.user_id IS NOT NULL GROUP BY 1, 2, 3, 4) o
        WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, o.span, o.period_start);
    END IF;
    IF TG_OP = 'DELETE' THEN
        PERFORM settle_draws(array_agg(o.job_id), array_agg(0::bigint)) FROM old_rows o WHERE o.from_grants > 0;
    ELSE
        PERFORM require_meters(ARRAY(SELECT DISTINCT event_type::text FROM new_rows));
        INSERT INTO holders AS h (holder, event_type, user_id, slots_in_use, parked)
        SELECT holder, event_type, user_id, count(admitted_at), count(parked_at)
        FROM new_rows GROUP BY 1, 2, 3 ORDER BY 1, 2
        ON CONFLICT (holder, event_type) DO UPDATE
            SET slots_in_use = h.slots_in_use + excluded.slots_in_use, parked = h.parked + excluded.parked,
                parked_from = CASE WHEN excluded.parked > 0 THEN 0 ELSE h.parked_from END;
        INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, reserved, from_grants)
        SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.reserved_amount),
               coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0)
        FROM new_rows r
        CROSS JOIN LATERAL windows_of(r.period_start, r.windows, r.created_at) w
        WHERE r.user_id IS NOT NULL GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (user_id, event_type, span, period_start)
            DO UPDATE SET reserved = b.reserved + excluded.reserved, from_grants = b.from_grants + excluded.from_grants;
    END IF;
    RETURN NULL;
END
$$;
