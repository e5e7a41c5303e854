-- Starts attempts at the next available jobs of a queue, by priority and time. Skips jobs that other workers are
-- claiming. Commit before you start work, so that others see that the jobs run.
--
-- A claim registers the worker. Then call `weir_heartbeat` every two seconds: after ten seconds without a heartbeat, a
-- claim or a progress, others get the worker's jobs.
--
-- | parameter | |
-- |---|---|
-- | `queue` | one of a service's queues |
-- | `worker` | the process. No other process has the same name: 1 to 100 letters, digits, `.`, `_` and `-`, not starting with `weir_` |
-- | `most` | 1 to 1000 jobs, usually the number of the worker's idle handlers. Default: 1 |
-- | `headroom` | how many of these are not lent to jobs over their user's slots, so that a user whose slots are free finds an idle worker. Default: 1 |
--
-- A job needs a slot if its arguments name a user. A job without a user (`user_id` absent, empty or not a text) needs
-- none. If too few jobs have a slot, parked jobs of users whose plan has a `burst` start too. A paused queue returns no
-- jobs.
--
-- `holder` is the account, null for a job of another program. `key` is the same for all attempts at a job, and no other
-- job has it in any copy of the database: pass it to other systems as an idempotency key.
--
-- Pass `created_at` to the functions that end the attempt. After a failover that lost commits, a new job may have the
-- id and the attempt of a lost one; its time differs. The clients of this repository pass it.
--
-- Errors: 22023 for invalid arguments, and for a queue that no service has once the worker is registered.
--
-- Cost: as claim_jobs(), one look-up and, if there are jobs, one write.
--
-- Callers: other languages, as role weir_worker.
CREATE OR REPLACE FUNCTION weir_claim(queue text, worker text, most int DEFAULT 1, headroom int DEFAULT 1)
RETURNS TABLE (job_id bigint, attempt int, kind text, args jsonb, created_at timestamptz, holder uuid, key uuid)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
#variable_conflict use_column
DECLARE
    known text[];
BEGIN
    IF most IS NULL OR most NOT BETWEEN 1 AND 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a worker can claim 1 to 1000 jobs at once';
    ELSIF headroom IS NULL OR headroom < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'headroom must be a whole number from 0';
    END IF;
    PERFORM require_worker_name(worker);
    RETURN QUERY
    SELECT c.job_id, c.attempt::int, c.kind, c.args::jsonb, c.created_at, c.holder, c.key
    FROM claim_jobs(worker, ARRAY(SELECT s.kind FROM weir_services s), true, ARRAY[queue], ARRAY[most],
                    ARRAY[NULL::timestamptz],
                    ARRAY[most - headroom]) c
    WHERE c.job_id IS NOT NULL;
    IF FOUND THEN
        PERFORM record_heartbeat(worker);
    END IF;
    -- Once for each queue.
    UPDATE processes p SET queues = array_append(p.queues, queue)
    WHERE p.client_id = worker AND queue <> ALL (p.queues);
    IF FOUND THEN
        known := ARRAY(SELECT s.name || '_' || l.lane
                       FROM weir_services s, unnest('{priority,default,scheduled}'::text[]) AS l (lane)
                       ORDER BY 1);
        IF queue <> ALL (known) THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('no service has the queue %s', queue),
                HINT = format('the queues are %s; run `weir migrate` to add those of weir.toml',
                              coalesce(nullif(array_to_string(known, ', '), ''), 'none'));
        END IF;
    END IF;
END
$$;

COMMENT ON FUNCTION weir_claim IS
    'starts attempts at the next jobs of a queue; commit before you work, so that others see that the jobs run';
