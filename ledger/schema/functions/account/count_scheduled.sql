-- The number of a holder's jobs of a meter that wait for their time or a retry. Counts up to `most`, at most 10 000,
-- because a submission and its group wait for this count.
-- Cost: one index range of at most 10 000 entries.
-- Callers: accounts_of.
CREATE OR REPLACE FUNCTION count_scheduled(of_holder uuid, meter text, most int) RETURNS int
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN (
        SELECT count(*)
        FROM (
            SELECT FROM quota_reservations r
            WHERE r.holder = of_holder AND r.event_type = meter AND r.due_at IS NOT NULL
            LIMIT greatest(least(most, 10000), 0)
        ) waiting
    );
END
$$;
