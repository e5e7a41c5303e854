-- Trigger of plan_limits: makes sure that every window with a limit is counted. It is counted in every plan, so that
-- usage is known after a change of plan. Runs once before the rows, to take a lock: each writer must see the limits of
-- others.
-- Cost: a scan of plan_limits, which has one row for each plan and meter.
CREATE OR REPLACE FUNCTION count_limited_windows() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF TG_WHEN = 'BEFORE' THEN
        LOCK TABLE plan_limits IN SHARE UPDATE EXCLUSIVE MODE;
        RETURN NULL;
    END IF;
    UPDATE plan_limits l
    SET counted = c.windows
    FROM (
        SELECT p.event_type, coalesce(bit_or(s.mask) FILTER (WHERE w.most IS NOT NULL), 0)::smallint AS windows
        FROM plan_limits p
        CROSS JOIN LATERAL (VALUES ('day', p.day), ('hour', p.hour), ('minute', p.minute)) AS w (span, most)
        JOIN short_windows() s ON s.span = w.span
        GROUP BY 1
    ) c
    WHERE l.event_type = c.event_type AND l.counted <> c.windows;
    RETURN NULL;
END
$$;
