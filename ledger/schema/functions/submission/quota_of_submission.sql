-- The quota after a decision of submit_many(), as SQL callers see it: that of the month, and the windows without room. The
-- parameters are columns of its rows. Null without a plan.
-- Cost: no table.
-- Callers: submit_group, check_submission, weir_retry.
CREATE OR REPLACE FUNCTION quota_of_submission(outcome text, added bigint, drawn bigint, full_spans text[], spans text[],
                                               ends timestamptz[], limits bigint[], ceilings bigint[], used_in bigint[],
                                               reserved_in bigint[], from_grants bigint, granted bigint)
RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    quota jsonb;
BEGIN
    IF spans IS NULL OR outcome = 'key_reused' THEN
        RETURN NULL;
    END IF;
    quota := quota_json(used_in[1], reserved_in[1] + added, limits[1], ends[1], from_grants + drawn, granted - drawn,
                        ceilings[1]);
    IF outcome = 'over_quota' THEN
        quota := quota || jsonb_build_object('windows', (
            SELECT jsonb_agg(jsonb_build_object('window', m.span)
                             || quota_json(m.used, m.reserved + added, m.most, m.past, g.paid, g.granted, m.ceiling)
                             ORDER BY m.n)
            FROM unnest(spans, used_in, reserved_in, limits, ends, ceilings) WITH ORDINALITY
                AS m (span, used, reserved, most, past, ceiling, n)
            CROSS JOIN LATERAL (
                SELECT CASE m.n WHEN 1 THEN from_grants + drawn ELSE 0 END AS paid,
                       CASE m.n WHEN 1 THEN quota_of_submission.granted - drawn ELSE 0 END AS granted
            ) g
            WHERE m.span = ANY (full_spans)));
    END IF;
    RETURN quota;
END
$$;
