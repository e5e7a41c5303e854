-- Notifies a queue's workers of a job, as River's own clients do.
--
-- PostgreSQL takes a lock of the whole cluster for a notification, from before COMMIT is flushed, on a synchronous standby
-- too. So Weir calls this in transactions that write nothing, after the commits that make jobs available. PostgreSQL does
-- not flush those.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: submit_group with the option `wake`, weir_release; ledger/src/database/notifier.rs.
CREATE OR REPLACE FUNCTION wake_queue(queue text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify(river_channel('river_insert'), json_build_object('queue', queue)::text)
$$;
