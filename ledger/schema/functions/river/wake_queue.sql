-- Notifies a queue's workers of a job, as River's own clients do. Called for every job that becomes available, even if
-- others wait. An idle worker must wake up, and the database does not show which workers are idle. PostgreSQL sends
-- equal notifications of one transaction once.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: weir_submit, deliver, promote_parked; ledger/src/attempts/sql/requeue_lost.sql,
-- ledger/src/control/sql/replay.sql and replay_undelivered.sql, ledger/src/periodic/enqueue.sql,
-- ledger/src/reconciliation/sql/take_over.sql, ledger/src/reservation/sql/notify.sql.
CREATE OR REPLACE FUNCTION wake_queue(queue text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify(river_channel('river_insert'), json_build_object('queue', queue)::text)
$$;
