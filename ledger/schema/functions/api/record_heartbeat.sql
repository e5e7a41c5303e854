-- Records that a worker of another language is alive, and registers it if it is new.
-- Cost: one write.
-- Callers: weir_claim, weir_heartbeat.
CREATE OR REPLACE FUNCTION record_heartbeat(worker text) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    INSERT INTO processes (client_id) VALUES (worker)
    ON CONFLICT (client_id) DO UPDATE SET beat_at = clock_timestamp();
END
$$;
