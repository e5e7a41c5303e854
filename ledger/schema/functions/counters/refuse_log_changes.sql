-- Trigger of admin_log: the log is append-only. Refuses (P0001) every change and deletion.
-- Cost: no table.
CREATE OR REPLACE FUNCTION refuse_log_changes() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: its rows cannot be changed or deleted', TG_TABLE_NAME;
END
$$;
