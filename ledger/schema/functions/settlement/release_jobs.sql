-- Ends the reservations of jobs that ended without a charge: frees their slots, and returns their quota and draws on
-- grants. Gives the slots to no other job. The caller holds the accounts' locks.
-- Cost: one look-up and one write a job, and one write for each account and window.
-- Callers: end_reservations_of_users; ledger/src/control/cancel.rs.
CREATE OR REPLACE FUNCTION release_jobs(jobs bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM settle_draws(jobs, array_fill(0::bigint, ARRAY[cardinality(jobs)]));
    WITH released AS MATERIALIZED (
        SELECT * FROM quota_reservations r WHERE r.job_id = ANY (jobs) FOR NO KEY UPDATE
    ), ended AS (
        UPDATE weir_jobs j
        SET ended_at = clock_timestamp(), admitted_at = NULL, parked_at = NULL, due_at = NULL, start_by = NULL,
            progress = NULL, deleted_at = now()
        FROM released r
        WHERE j.job_id = r.job_id
    ), accounts AS (
        UPDATE holders h
        SET slots_in_use = h.slots_in_use - o.slots, parked = h.parked - o.parked, reserved = h.reserved - o.amount,
            from_grants = h.from_grants - o.from_grants, changes = h.changes + 1
        FROM (SELECT k.holder, k.event_type, count(r.admitted_at) AS slots, count(r.parked_at) AS parked,
                     coalesce(sum(r.reserved_amount) FILTER (WHERE r.period_start = k.period_start), 0) AS amount,
                     coalesce(sum(r.from_grants) FILTER (WHERE r.period_start = k.period_start), 0) AS from_grants
              FROM released r JOIN holders k ON (k.holder, k.event_type) = (r.holder, r.event_type)
              GROUP BY 1, 2) o
        WHERE (h.holder, h.event_type) = (o.holder, o.event_type)
    )
    -- The month of the account's row is not among these.
    UPDATE window_balances b SET reserved = b.reserved - o.amount, from_grants = b.from_grants - o.from_grants
    FROM (SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.reserved_amount) AS amount,
                 coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0) AS from_grants
          FROM released r
          CROSS JOIN LATERAL windows_of(r.period_start, r.windows, r.created_at) w
          WHERE r.user_id IS NOT NULL GROUP BY 1, 2, 3, 4) o
    WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, o.span, o.period_start);
    PERFORM emit_job_ends(jobs);
END
$$;
