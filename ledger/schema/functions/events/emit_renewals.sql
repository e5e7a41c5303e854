-- Emits quota.renewed for ended windows in which a threshold was reached, and deletes their rows. Handles at most 1000
-- per call and returns the number. Only one caller may run at a time.
-- Cost: one look-up by index when no window has ended; else one account_of() a window.
-- Callers: ledger/src/control/webhooks.rs.
CREATE OR REPLACE FUNCTION emit_renewals() RETURNS bigint LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    ended record;
BEGIN
    -- Returns early when no window has ended: most entries of the index are in the future.
    IF NOT EXISTS (SELECT FROM quota_thresholds q WHERE q.ends_at <= now()) THEN
        RETURN 0;
    END IF;
    PERFORM FROM weir_locks l WHERE l.name = 'renewals' FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    WITH due AS MATERIALIZED (
        SELECT DISTINCT q.user_id, q.event_type, q.span, q.period_start
        FROM (SELECT * FROM quota_thresholds t WHERE t.ends_at <= now() ORDER BY t.ends_at LIMIT 1000) q
    ), gone AS (
        DELETE FROM quota_thresholds q USING due d
        WHERE q.user_id = d.user_id AND q.event_type = d.event_type AND q.span = d.span AND q.period_start = d.period_start
        RETURNING q.user_id, q.event_type, q.span, q.period_start
    ), windows AS (
        SELECT g.user_id, g.event_type, g.span, g.period_start, count(*) AS n FROM gone g GROUP BY 1, 2, 3, 4
    )
    SELECT coalesce(sum(w.n), 0)::bigint AS n,
           array_agg('quota.renewed'::text) FILTER (WHERE l.span IS NOT NULL) AS types,
           array_agg(w.user_id) FILTER (WHERE l.span IS NOT NULL) AS holders,
           array_agg(jsonb_build_object(
               'subject', subject_of(w.user_id), 'holder', w.user_id, 'meter', w.event_type, 'window', w.span,
               'used', l.used, 'limit', l.most, 'period_start', utc_text(l.period_start),
               'reset_at', utc_text(l.ends_at))) FILTER (WHERE l.span IS NOT NULL) AS details
    INTO ended
    FROM windows w
    LEFT JOIN LATERAL (
        SELECT * FROM windows_with_limits(w.user_id, w.event_type, clock_timestamp()) k WHERE k.span = w.span OFFSET 0
    ) l ON true;
    IF ended.types IS NOT NULL THEN
        PERFORM emit(ended.types, ended.holders, ended.details);
    END IF;
    RETURN ended.n;
END
$$;
