-- Emits quota.threshold for each threshold that a user has reached in the current month or day and that was not emitted
-- yet. After a limit is raised, reaching the threshold again emits it again. Hours and minutes have no thresholds.
-- Cost: a scan of webhooks, one account_of(), and a write for each threshold that was reached.
-- Callers: emit_override_thresholds, emit_plan_change, emit_usage.
CREATE OR REPLACE FUNCTION emit_thresholds(of_user uuid, meter text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    reached record;
BEGIN
    WITH thresholds AS (
        SELECT DISTINCT t.percent
        FROM subscribed_webhooks w CROSS JOIN unnest(w.thresholds) AS t (percent)
        WHERE w.has_thresholds
    ), first_time AS (
        INSERT INTO quota_thresholds AS q (user_id, event_type, span, period_start, percent, used, most, ends_at)
        SELECT of_user, meter, w.span, w.period_start, t.percent, w.used, w.most, w.ends_at
        FROM windows_with_limits(of_user, meter, clock_timestamp()) w
        JOIN thresholds t ON w.used::numeric * 100 >= w.most::numeric * t.percent
        ORDER BY w.span, t.percent
        ON CONFLICT (user_id, event_type, span, period_start, percent) DO UPDATE
            SET used = excluded.used, most = excluded.most, ends_at = excluded.ends_at, reached_at = clock_timestamp()
            WHERE q.most < excluded.most
        RETURNING *
    )
    SELECT array_agg('quota.threshold'::text) AS types, array_agg(of_user) AS holders,
           array_agg(n.percent ORDER BY n.span, n.percent) AS percents,
           array_agg(jsonb_build_object(
               'subject', subject_of(of_user), 'holder', of_user, 'meter', meter, 'window', n.span,
               'percent', n.percent, 'used', n.used, 'limit', n.most,
               'period_start', utc_text(n.period_start), 'reset_at', utc_text(n.ends_at)
           ) ORDER BY n.span, n.percent) AS details
    INTO reached
    FROM first_time n;
    IF reached.types IS NOT NULL THEN
        PERFORM emit(reached.types, reached.holders, reached.details, reached.percents);
    END IF;
END
$$;
