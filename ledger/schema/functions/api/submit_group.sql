-- Submits for SQL callers: submit_many() with a caller's outcomes and quotas. Notifies workers of admitted jobs whose
-- submission wants that.
-- Errors: as submit_many().
-- Cost: as submit_many().
-- Callers: weir_submit, weir_submit_many.
CREATE OR REPLACE FUNCTION submit_group(submissions submission[], wakes boolean[], all_or_none boolean)
RETURNS TABLE (member int, outcome text, job_id bigint, quota jsonb)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    r record;
BEGIN
    FOR r IN
        -- The last row of a member has its decision.
        SELECT DISTINCT ON (m.member) m.*
        FROM submit_many(submissions, 'wait', all_or_none) WITH ORDINALITY m
        ORDER BY m.member, m.ordinality DESC
    LOOP
        member := r.member;
        outcome := CASE r.outcome WHEN 'scheduled' THEN 'parked' ELSE r.outcome END;
        job_id := r.job_id;
        quota := quota_of_submission(r.outcome, r.added, r.drawn, r.full_spans, r.spans, r.ends, r.limits, r.ceilings,
                                     r.used_in, r.reserved_in, r.from_grants, r.granted);
        IF outcome = 'admitted' AND wakes[r.member] THEN
            PERFORM wake_queue(r.queue);
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
