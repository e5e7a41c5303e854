-- Deletes the reservations of jobs that ended without a charge: frees their slots, and returns their quota and draws on
-- grants. Gives the slots to no other job. The caller holds the accounts' locks.
-- Cost: one look-up and one delete a job, and one write for each account and window.
-- Callers: end_reservations_of_users; ledger/src/control/cancel.rs.
CREATE OR REPLACE FUNCTION release_jobs(jobs bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM settle_draws(jobs, array_fill(0::bigint, ARRAY[cardinality(jobs)]));
    WITH released AS (
        DELETE FROM quota_reservations r WHERE r.job_id = ANY (jobs)
        RETURNING r.*
    ), accounts AS (
        UPDATE holders h SET slots_in_use = h.slots_in_use - o.slots, parked = h.parked - o.parked
        FROM (SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked
              FROM released GROUP BY 1, 2) o
        WHERE (h.holder, h.event_type) = (o.holder, o.event_type)
    )
    UPDATE quota_balances b SET reserved = b.reserved - o.amount, from_grants = b.from_grants - o.from_grants
    FROM (SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.reserved_amount) AS amount,
                 coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0) AS from_grants
          FROM released r
          CROSS JOIN LATERAL windows_of(r.period_start, r.windows, r.created_at) w
          WHERE r.user_id IS NOT NULL GROUP BY 1, 2, 3, 4) o
    WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, o.span, o.period_start);
END
$$;
