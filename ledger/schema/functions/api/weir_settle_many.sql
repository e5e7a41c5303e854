-- Ends attempts, inside the caller's transaction, by one statement: `weir_complete` and `weir_fail` for groups. Locks the
-- accounts in one order, so that groups do not block each other in circles.
--
-- | parameter | |
-- |---|---|
-- | `attempts` | a JSON array of at most 1000 objects. A success has `{"job_id", "attempt", "created_at", "output", "used"}`, a failure `{"job_id", "attempt", "created_at", "error", "retry_at"}`. The first two are required; null is as good as absent. Times have an offset |
--
-- Returns a row for each member: its place in the array, from 1, and the outcome and charge of `weir_complete`, or the
-- outcome of `weir_fail`.
--
-- Errors: as `weir_complete` and `weir_fail`, of any member, and 22023 for an invalid member. Then nothing was written.
--
-- Cost: as `weir_complete` or `weir_fail` for each member, in one message and one transaction.
--
-- Callers: other languages, as role weir_worker.
CREATE OR REPLACE FUNCTION weir_settle_many(attempts jsonb)
RETURNS TABLE (member int, job_id bigint, outcome text, charged bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
#variable_conflict use_column
DECLARE
    known CONSTANT text[] := ARRAY['job_id', 'attempt', 'created_at', 'output', 'used', 'error', 'retry_at'];
    holders uuid[];
    meters usage_event_type[];
    one record;
BEGIN
    PERFORM require_read_committed('weir_settle_many');
    IF jsonb_typeof(attempts) IS DISTINCT FROM 'array' OR jsonb_array_length(attempts) > 1000 OR EXISTS (
        SELECT FROM jsonb_array_elements(attempts) a
        WHERE a - known <> '{}'
           OR (a ->> 'job_id' ~ '^[0-9]{1,18}$' AND a ->> 'attempt' ~ '^[0-9]{1,5}$'
               AND coalesce(a ->> 'used', '0') ~ '^-?[0-9]{1,18}$') IS NOT TRUE
    ) THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('attempts must be a JSON array of at most 1000 objects with the members %s; the numbers are whole',
                             array_to_string(known, ', '));
    END IF;
    SELECT array_agg(r.holder), array_agg(r.event_type) INTO holders, meters
    FROM jsonb_array_elements(attempts) a
    CROSS JOIN LATERAL (SELECT * FROM quota_reservations q WHERE q.job_id = (a ->> 'job_id')::bigint OFFSET 0) r;
    PERFORM FROM lock_accounts(holders, meters, false);
    FOR one IN
        SELECT a.ordinality::int AS member, (a.value ->> 'job_id')::bigint AS id, (a.value ->> 'attempt')::int AS attempt,
               time_of(a.value ->> 'created_at', 'created_at') AS created_at, a.value ->> 'error' IS NOT NULL AS failed, a.value AS of
        FROM jsonb_array_elements(attempts) WITH ORDINALITY a
    LOOP
        member := one.member;
        job_id := one.id;
        charged := 0;
        IF one.failed THEN
            outcome := weir_fail(one.id, one.attempt, one.of ->> 'error', time_of(one.of ->> 'retry_at', 'retry_at'),
                                 one.created_at);
        ELSE
            SELECT c.outcome, c.charged INTO outcome, charged
            FROM weir_complete(one.id, one.attempt, nullif(one.of -> 'output', 'null'), (one.of ->> 'used')::bigint,
                               one.created_at) c;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

COMMENT ON FUNCTION weir_settle_many IS
    'ends attempts in the caller''s transaction; one row per member, with the outcome of weir_complete or weir_fail';
