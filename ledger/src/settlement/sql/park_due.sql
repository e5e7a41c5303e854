-- Parks due jobs that are not running and not about to. The caller holds the locks of these holders, and promotes
-- afterwards. Returns how many jobs each holder parks, and whether any of its jobs stays due.
-- Parameters: $1 job ids, $2 holders, $3 meters, pairwise.
--
-- A retry is parked before it can be claimed, so that it has a slot whichever client runs it. A unique job with a key
-- that does not count while it is pending stays unchanged, because another job could take the key.
WITH due AS MATERIALIZED (
    SELECT r.job_id, r.holder, r.event_type, j.id, coalesce(e.waits, false) AS waits
    FROM (
        SELECT DISTINCT job_id
        FROM unnest($1::bigint[], $2::uuid[], $3::usage_event_type[]) AS u (job_id, holder, event_type)
        ORDER BY 1
    ) a
    CROSS JOIN LATERAL (
        SELECT * FROM quota_reservations q WHERE q.job_id = a.job_id AND q.due_at IS NOT NULL OFFSET 0
    ) r
    LEFT JOIN LATERAL (
        SELECT k.state IN ('pending', 'retryable', 'scheduled', 'available')
               AND may_be_pending(k.unique_key, k.unique_states) AS waits
        FROM river_job k WHERE k.id = a.job_id OFFSET 0
    ) e ON true
    LEFT JOIN LATERAL (
        SELECT k.id FROM river_job k
        WHERE k.id = a.job_id AND e.waits AND k.state IN ('pending', 'retryable', 'scheduled', 'available')
        OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED
    ) j ON true
), made_pending AS (
    UPDATE river_job j SET state = 'pending' FROM due d WHERE j.id = d.id AND (j.state <> 'pending') IS TRUE
), asked AS (
    -- A locked job is being claimed or cancelled. The next round checks it again.
    UPDATE quota_reservations r
    SET due_at = NULL, parked_at = CASE WHEN d.id IS NOT NULL THEN clock_timestamp() END
    FROM due d
    WHERE r.job_id = d.job_id AND (d.id IS NOT NULL OR NOT d.waits)
    RETURNING r.holder, r.event_type, d.id
), parked AS (
    SELECT holder, event_type, count(id)::int AS n, min(id) AS first FROM asked GROUP BY 1, 2
), counted AS (
    UPDATE holders h SET parked = h.parked + p.n, parked_from = least(h.parked_from, p.first), changes = h.changes + 1
    FROM (
        SELECT n, first, (SELECT k.ctid FROM holders k WHERE k.holder = a.holder AND k.event_type = a.event_type
                   ORDER BY k.generation DESC LIMIT 1) AS place
        FROM parked a
        WHERE n > 0
    ) p
    WHERE h.ctid = p.place
)
SELECT holder, event_type, sum(n)::int AS parked, bool_or(stays) AS stays_due
FROM (
    SELECT holder, event_type, n, false AS stays FROM parked
    UNION ALL
    SELECT holder, event_type, 0, true FROM due WHERE id IS NULL AND waits
) looked_at
GROUP BY 1, 2
