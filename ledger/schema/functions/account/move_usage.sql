-- Moves a user's usage and reservations since a moment to the billing period that starts then, imported usage included.
-- Earlier ones stay in their periods. Adjustments also stay, unless their period starts later or its sum would become
-- negative. Then all its usage moves. The caller holds the locks of the user's accounts and has changed the anchor.
-- Cost: the user's usage events since a month before, and all reservations; a write for each row that moves.
-- Callers: apply_due_plan; ledger/src/control/plan.rs and import.rs.
CREATE OR REPLACE FUNCTION move_usage(of_user uuid, since timestamptz) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM close_months(ARRAY[of_user]);
    WITH candidates AS MATERIALIZED (
        SELECT u.id, u.event_type, u.period_start AS old_start, u.quota_amount, u.from_grants,
               coalesce(is_imported(u.reason), true) AND coalesce(u.reserved_at, u.created_at) >= since AS is_since
        FROM usage_events u
        -- A period that reaches beyond `since` starts at most a month before.
        WHERE u.user_id = of_user AND u.period_start <> since AND u.period_start > since - interval '32 days'
          AND u.created_at > since - interval '32 days'
    ), whole_periods AS MATERIALIZED (
        SELECT c.event_type, c.old_start
        FROM candidates c
        GROUP BY 1, 2
        HAVING c.old_start > since
            OR sum(c.quota_amount) < coalesce(sum(c.quota_amount) FILTER (WHERE c.is_since), 0)
    ), moved_usage AS (
        UPDATE usage_events u SET period_start = since
        FROM candidates c
        WHERE u.id = c.id
          AND (c.is_since OR (c.event_type, c.old_start) IN (SELECT w.event_type, w.old_start FROM whole_periods w))
        RETURNING c.event_type, c.old_start, c.quota_amount AS used, 0::bigint AS reserved, c.from_grants
    ), moved_reservations AS (
        UPDATE weir_jobs r SET period_start = since
        FROM (SELECT k.job_id, k.period_start AS old_start FROM quota_reservations k
              WHERE k.user_id = of_user AND k.period_start <> since AND k.created_at >= since) o
        WHERE r.job_id = o.job_id
        RETURNING r.event_type, o.old_start, 0::bigint, r.reserved_amount, r.from_grants
    ), sums AS MATERIALIZED (
        SELECT m.event_type, m.old_start, sum(m.used)::bigint AS used, sum(m.reserved)::bigint AS reserved,
               sum(m.from_grants)::bigint AS from_grants
        FROM (SELECT * FROM moved_usage UNION ALL SELECT * FROM moved_reservations) m
        GROUP BY 1, 2
    ), taken AS (
        UPDATE window_balances b
        SET used = b.used - s.used, reserved = b.reserved - s.reserved, from_grants = b.from_grants - s.from_grants,
            changes = b.changes + 1
        FROM sums s
        WHERE b.user_id = of_user AND b.event_type = s.event_type AND b.span = 'month' AND b.period_start = s.old_start
    )
    INSERT INTO window_balances AS b (user_id, event_type, span, period_start, used, reserved, from_grants, granted_limit)
    SELECT of_user, s.event_type, 'month', since, sum(s.used), sum(s.reserved), sum(s.from_grants),
           sum(s.used) + sum(s.reserved) - sum(s.from_grants)
    FROM sums s
    GROUP BY s.event_type ORDER BY s.event_type
    ON CONFLICT (user_id, event_type, span, period_start) DO UPDATE
        SET used = b.used + excluded.used, reserved = b.reserved + excluded.reserved,
            from_grants = b.from_grants + excluded.from_grants, changes = b.changes + 1,
            -- It was accepted in another period.
            granted_limit = greatest(b.granted_limit, b.used + b.reserved - b.from_grants + excluded.granted_limit);
    -- The months that ended with the change renew now.
    UPDATE quota_thresholds q SET ends_at = now()
    WHERE q.user_id = of_user AND q.span = 'month' AND q.period_start <> since AND q.ends_at > now();
END
$$;
