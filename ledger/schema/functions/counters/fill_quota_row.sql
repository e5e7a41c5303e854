-- Trigger of quota_reservations. Fills in the period and the windows of the jobs that processes of release 0.1.0 adopt
-- during an upgrade.
-- Cost: three look-ups by key a row that has no period.
CREATE OR REPLACE FUNCTION fill_quota_row() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    NEW.period_start := period_start_of(NEW.user_id, NEW.created_at);
    NEW.windows := coalesce((SELECT max(l.counted) FROM plan_limits l WHERE l.event_type = NEW.event_type), 0);
    RETURN NEW;
END
$$;
