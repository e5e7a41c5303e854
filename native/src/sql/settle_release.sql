-- Reservations whose job is at its end turn into a usage event (completed) or into nothing (cancelled, discarded,
-- deleted); reservations whose job failed and will be tried again keep their quota and give up their slot.
-- $1 job ids.
--
-- The job is looked up by scalar subqueries on purpose: they can only be run through its primary key, whatever the
-- planner believes about the size of river_job.
WITH ended AS MATERIALIZED (
    DELETE FROM quota_reservations r
    WHERE r.job_id = ANY ($1::bigint[])
      AND coalesce((SELECT j.finalized_at IS NOT NULL FROM river_job j WHERE j.id = r.job_id), true)
    RETURNING r.*
), outcome AS MATERIALIZED (
    SELECT e.*,
           (SELECT j.state FROM river_job j WHERE j.id = e.job_id) AS state,
           (SELECT CASE WHEN jsonb_typeof(j.metadata -> 'weir:used') = 'number'
                        THEN (j.metadata ->> 'weir:used')::numeric END
            FROM river_job j WHERE j.id = e.job_id) AS used,
           (SELECT j.metadata ->> 'weir:request_id' FROM river_job j WHERE j.id = e.job_id) AS request_id
    FROM ended e
), charged AS (
    INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start)
    SELECT user_id, event_type,
           least(greatest(coalesce(trunc(used), reserved_amount), 0), reserved_amount)::int, job_id, period_start
    FROM outcome
    WHERE state = 'completed' AND user_id IS NOT NULL
      AND least(coalesce(trunc(used), reserved_amount), reserved_amount) > 0
    ON CONFLICT (job_id) DO NOTHING
    RETURNING job_id, quota_amount
), yielded AS (
    UPDATE quota_reservations r
    SET admitted_at = NULL
    WHERE r.job_id = ANY ($1::bigint[]) AND r.admitted_at IS NOT NULL
      AND (SELECT j.state IN ('retryable', 'scheduled') OR j.state = 'available' AND j.scheduled_at > now()
           FROM river_job j WHERE j.id = r.job_id)
    RETURNING r.holder, r.event_type
), balances AS (
    UPDATE quota_balances b
    SET reserved = b.reserved - d.reserved, used = b.used + d.used
    FROM (
        SELECT o.user_id, o.event_type, o.period_start,
               sum(o.reserved_amount) AS reserved, coalesce(sum(c.quota_amount), 0) AS used
        FROM outcome o LEFT JOIN charged c ON c.job_id = o.job_id
        WHERE o.user_id IS NOT NULL
        GROUP BY 1, 2, 3
    ) d
    WHERE b.user_id = d.user_id AND b.event_type = d.event_type AND b.period_start = d.period_start
), freed AS (
    SELECT holder, event_type, sum(slots)::int AS slots, sum(parked)::int AS parked
    FROM (
        SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked
        FROM outcome GROUP BY 1, 2
        UNION ALL
        SELECT holder, event_type, count(*), 0 FROM yielded GROUP BY 1, 2
    ) f
    GROUP BY 1, 2
), slots AS (
    UPDATE holders h
    SET slots_in_use = h.slots_in_use - f.slots, parked = h.parked - f.parked
    FROM freed f
    WHERE h.holder = f.holder AND h.event_type = f.event_type
    RETURNING h.holder, h.event_type, h.user_id, h.slots_in_use, h.parked
)
SELECT s.holder, s.event_type, s.user_id, s.slots_in_use, s.parked,
       (SELECT p.tier::text FROM user_subscriptions u JOIN subscription_plans p ON p.id = u.plan_id
        WHERE u.user_id = s.user_id AND u.status = 'active') AS tier,
       o.job_id, o.state::text, o.reserved_amount, coalesce(c.quota_amount, 0) AS charged, o.request_id
FROM slots s
LEFT JOIN outcome o ON o.holder = s.holder AND o.event_type = s.event_type
LEFT JOIN charged c ON c.job_id = o.job_id
