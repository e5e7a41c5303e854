-- Draws an amount for a job on its user's grants, after the job's earlier draws. The caller holds the account's lock
-- and has checked that the grants cover the amount. policy/src/grants.rs specifies it for tests.
-- Cost: one index range over the user's grants, and a write for each grant that pays.
-- Callers: submit_many, admit_late, weir_extend.
CREATE OR REPLACE FUNCTION draw_grants(of_user uuid, meter text, job bigint, drawn bigint, at timestamptz, of_month timestamptz)
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    WITH draws AS (
        INSERT INTO grant_draws (job_id, position, grant_id, amount)
        SELECT job, d.n + g.n - 1, g.id, least(g.amount, drawn - g.before)
        FROM grants_left(of_user, meter, at) g
        CROSS JOIN (SELECT coalesce(max(o.position) + 1, 0) AS n FROM grant_draws o WHERE o.job_id = job) d
        WHERE g.before < drawn
        RETURNING grant_id, amount
    )
    UPDATE grants g SET reserved = g.reserved + d.amount FROM draws d WHERE g.id = d.grant_id;
    UPDATE holders h SET from_grants = h.from_grants + drawn
    WHERE h.ctid = (SELECT k.ctid FROM holders k WHERE k.holder = of_user AND k.event_type = meter
                    ORDER BY k.generation DESC LIMIT 1)
      AND h.period_start = of_month;
    IF NOT FOUND THEN
        UPDATE window_balances b SET from_grants = b.from_grants + drawn
        WHERE b.ctid = (SELECT k.ctid FROM window_balances k
                        WHERE k.user_id = of_user AND k.event_type = meter AND k.span = 'month' COLLATE "default"
                          AND k.period_start = of_month
                        ORDER BY k.generation DESC LIMIT 1);
    END IF;
END
$$;
