-- Parks a user's other claimable jobs, as if they had been submitted through Weir, so that they cost no claims. Jobs
-- with a slot stay. The caller holds the holder's lock, so none of them is admitted before the commit. Parameters:
--
-- - $1: kinds.
-- - $2: the user_id as the arguments have it.
-- - $3 to $6: user id, meter, holder, period.
-- - $7: seconds to live.
-- - $8: how many at most.
--
-- A retry that is not due keeps its delay. A submitted job that had ended, and that an operator retries, holds nothing
-- and reserves for itself. A unique job also stays if its key does not count while it is pending. Otherwise another job
-- could take the key, and nothing could wake this one.
WITH backlog AS MATERIALIZED (
    SELECT j.id
    FROM river_job j
    WHERE j.state = 'available' AND j.scheduled_at <= now() AND j.kind = ANY ($1::text[])
      AND j.args @> jsonb_build_object('user_id', $2::text)
      AND may_be_pending(j.unique_key, j.unique_states)
      AND NOT EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id AND r.admitted_at IS NOT NULL)
      AND (EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id)
           OR NOT EXISTS (SELECT 1 FROM submissions s WHERE s.job_id = j.id))
      -- The job's service had another meter before, and its holder's row for that meter is not locked.
      AND NOT EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id AND r.event_type <> $4)
    LIMIT $8::bigint
    FOR NO KEY UPDATE OF j SKIP LOCKED
), parked AS (
    UPDATE river_job j
    SET state = 'pending'
    FROM backlog b
    WHERE j.id = b.id
    RETURNING j.id
), reserved AS (
    INSERT INTO quota_reservations AS r
        (user_id, event_type, reserved_amount, job_id, expires_at, holder, period_start, windows, admitted_at, parked_at)
    SELECT $3::uuid, $4::usage_event_type, 0, p.id, now() + make_interval(secs => $7), $5::uuid, $6::timestamptz, w.windows,
           NULL, clock_timestamp()
    FROM parked p
    CROSS JOIN (
        SELECT coalesce(max(l.counted), 0) AS windows FROM plan_limits l WHERE l.event_type = $4 AND $3::uuid IS NOT NULL
    ) w
    ON CONFLICT (job_id) DO UPDATE SET parked_at = excluded.parked_at, due_at = NULL WHERE r.parked_at IS NULL
    RETURNING r.job_id
)
SELECT count(*) AS parked, min(job_id) AS first FROM reserved
