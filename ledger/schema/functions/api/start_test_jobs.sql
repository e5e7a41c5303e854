-- Lets a transaction claim the jobs that became available in it, in tests of programs. A promoted job is available from
-- the time of its promotion on, but now() is the start of the transaction. Only the owner of the schema may call it.
--
-- Cost: the available jobs that start after the transaction's.
-- Callers: the test helpers in clients/.
CREATE OR REPLACE FUNCTION start_test_jobs() RETURNS void
LANGUAGE sql
SET search_path FROM CURRENT
AS $$
    UPDATE river_job SET scheduled_at = now()
    WHERE state = 'available' AND scheduled_at > now() AND scheduled_at <= clock_timestamp()
$$;

COMMENT ON FUNCTION start_test_jobs IS
    'lets a transaction claim the jobs that became available in it, in tests of programs';
