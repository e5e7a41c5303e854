-- Keeps the running jobs of a worker that claims with `weir_claim`. Call it every two seconds, and commit. The first
-- call or claim registers the worker. A registered worker without a heartbeat, a claim or a progress report for ten
-- seconds is dead. `weir schedule` makes its jobs available to others, and its attempts are fenced out.
--
-- | parameter | |
-- |---|---|
-- | `worker` | the process, as in `weir_claim`. Each process has a different name |
--
-- Returns how many jobs the worker runs. Fewer than it works on: the others were taken over.
--
-- Errors: 22023 for an invalid name.
--
-- Cost: one write, and one index range over the running jobs.
--
-- Callers: other languages, as role weir_worker.
CREATE OR REPLACE FUNCTION weir_heartbeat(worker text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
BEGIN
    PERFORM require_worker_name(worker);
    PERFORM record_heartbeat(worker);
    RETURN (SELECT count(*) FROM river_job j
            WHERE j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] = worker);
END
$$;

COMMENT ON FUNCTION weir_heartbeat IS
    'keeps the running jobs of a worker; without it for ten seconds, others get them';
