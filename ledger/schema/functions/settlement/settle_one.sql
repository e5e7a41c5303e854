-- Settles one job with settle_many(), inside the caller's transaction. of_attempt is null for a job that has not succeeded.
-- Errors: 40001 when another transaction has just moved the job to another holder.
-- Cost: as settle_many().
-- Callers: weir_complete, retry_job, fail_attempt.
CREATE OR REPLACE FUNCTION settle_one(job bigint, of_attempt int, used bigint, output jsonb,
                                      OUT outcome text, OUT charged bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    -- No attempt has a number that is not a smallint.
    number CONSTANT int := CASE WHEN of_attempt NOT BETWEEN 0 AND 32767 THEN -1 ELSE of_attempt END;
BEGIN
    -- Also creates a missing row of the holder again.
    PERFORM lock_holder_of_job(job);
    SELECT s.outcome, s.charged INTO settle_one.outcome, settle_one.charged
    FROM settle_many(ARRAY[ROW(job, number, NULL, used, output)::ended_attempt], false, '{}', '{}', '{}') s
    WHERE s.outcome NOT IN ('promoted', 'lendable');
    IF outcome = 'locked' THEN
        RAISE serialization_failure USING
            MESSAGE = format('another transaction assigned job %s to another holder', job), HINT = 'retry the transaction';
    END IF;
END
$$;
