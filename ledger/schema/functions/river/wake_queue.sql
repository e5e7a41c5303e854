-- Notifies the workers of a queue that it has a job, as River's own clients do. Every job that becomes available goes
-- through here, however many others wait: an idle worker must be woken, and nothing in the database shows which are.
-- PostgreSQL sends equal notifications of one transaction once.
-- Callers: weir_submit, deliver, promote_parked; statements of ledger/src.
CREATE OR REPLACE FUNCTION wake_queue(queue text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify(river_channel('river_insert'), json_build_object('queue', queue)::text)
$$;
