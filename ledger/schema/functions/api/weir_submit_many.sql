-- Submits jobs, inside the caller's transaction, by one statement. The members are decided in order, as by `weir_submit`
-- one after the other, and a refusal is a row.
--
-- | parameter | |
-- |---|---|
-- | `submissions` | a JSON array of at most 1000 objects `{"subject", "service", "args", "amount", "options"}`, the parameters of `weir_submit`. `amount` and `options` may be absent |
-- | `all_or_none` | whether a refused member refuses all. Default: false |
--
-- Returns a row for each member: its place in the array, from 1, with the outcome, job and quota of `weir_submit`. With
-- `all_or_none` and a refusal, nothing was written, and the only row is that of the first refused member of its user.
--
-- Errors: as `weir_submit`, of any member. 40001 when another transaction has just used one
-- of the idempotency keys (retry).
--
-- Cost: as submit_many(). It locks the account of each user until the transaction ends.
--
-- Callers: other languages, as role weir_submitter.
CREATE OR REPLACE FUNCTION weir_submit_many(submissions jsonb, all_or_none boolean DEFAULT false)
RETURNS TABLE (member int, outcome text, job_id bigint, quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
#variable_conflict use_column
DECLARE
    known CONSTANT text[] := ARRAY['subject', 'service', 'args', 'amount', 'options'];
    one jsonb;
    s record;
    members submission[] := '{}';
    wakes boolean[] := '{}';
    refused CONSTANT text[] := ARRAY['over_quota', 'too_large', 'too_many_waiting', 'key_reused'];
BEGIN
    PERFORM require_read_committed('weir_submit_many');
    IF jsonb_typeof(submissions) IS DISTINCT FROM 'array' OR jsonb_array_length(submissions) NOT BETWEEN 1 AND 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'submissions must be a JSON array of 1 to 1000 objects';
    END IF;
    FOR one IN SELECT * FROM jsonb_array_elements(submissions) LOOP
        IF jsonb_typeof(one) <> 'object' OR one - known <> '{}' OR one ->> 'amount' !~ '^-?[0-9]{1,18}$' THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('member %s must be an object with the members %s; amount is a whole number',
                                 cardinality(members) + 1, array_to_string(known, ', '));
        END IF;
        s := submission_of(one ->> 'subject', one ->> 'service', one -> 'args', (one ->> 'amount')::bigint,
                           coalesce(one -> 'options', '{}'));
        members := members || s.submission;
        wakes := wakes || s.wake;
    END LOOP;
    RETURN QUERY
    WITH decided AS MATERIALIZED (
        SELECT * FROM submit_group(members, wakes, coalesce(weir_submit_many.all_or_none, false))
    )
    SELECT d.* FROM decided d
    WHERE NOT coalesce(weir_submit_many.all_or_none, false)
       OR d.outcome = ANY (refused)
       OR NOT EXISTS (SELECT FROM decided e WHERE e.outcome = ANY (refused))
    ORDER BY d.member;
END
$$;

COMMENT ON FUNCTION weir_submit_many IS
    'submits jobs in the caller''s transaction, all or none on request; one row per member, with the outcome of weir_submit';
