-- What a user's jobs hold and wait for, by event type. $1 user.
SELECT h.event_type,
       h.slots_in_use::bigint AS slots_in_use,
       h.parked::bigint AS parked,
       (SELECT count(*) FROM quota_reservations r JOIN river_job j ON j.id = r.job_id
        WHERE r.user_id = $1 AND r.event_type = h.event_type AND r.admitted_at IS NOT NULL
          AND (j.state = 'running' OR EXISTS (SELECT 1 FROM outstanding_attempts o WHERE o.job_id = j.id))) AS running
FROM holders h
WHERE h.holder = $1
