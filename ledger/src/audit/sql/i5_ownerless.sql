-- Jobs that run in a Weir process that is not registered, or that sent its last heartbeat and claim long ago. No
-- process would take them over.
-- Parameters: $2 seconds of grace in addition to the ten after which a process is dead.
SELECT format('job %s runs in %s, which %s', j.id, a.owner,
              CASE WHEN p.client_id IS NULL THEN 'is not registered' ELSE format('has been silent since %s', p.beat_at) END)
FROM river_job j
CROSS JOIN LATERAL (SELECT j.attempted_by[array_upper(j.attempted_by, 1)] AS owner) a
LEFT JOIN processes p ON p.client_id = a.owner
WHERE j.state = 'running' AND a.owner LIKE 'weir\_%'
  AND attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at) <= now() - make_interval(secs => $2)
  AND (p.client_id IS NULL OR greatest(p.beat_at, j.attempted_at) < now() - make_interval(secs => 10 + $2))
LIMIT $1
