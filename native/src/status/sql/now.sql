-- The database's clock, by which everybody's waits are measured; who leads, who runs maintenance; and what ended within the
-- last minute. $1 the kind of deliveries to webhooks, which are nobody's jobs.
SELECT clock_timestamp() AS at,
       l.leader_id,
       l.elected_at,
       d.process,
       d.since,
       t.timeline,
       t.seen_at,
       ended.completed,
       ended.cancelled,
       ended.failed
FROM (
    SELECT count(*) FILTER (WHERE state = 'completed') AS completed,
           count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
           count(*) FILTER (WHERE state = 'discarded') AS failed
    FROM river_job
    WHERE state IN ('completed', 'cancelled', 'discarded') AND finalized_at > now() - interval '1 minute'
      AND kind <> $1
) ended
LEFT JOIN river_leader l ON l.expires_at > now()
LEFT JOIN maintenance_lease d ON d.expires_at > clock_timestamp()
-- Another one than the first, so a failover or a restore.
LEFT JOIN LATERAL (
    SELECT * FROM weir_timelines w ORDER BY w.timeline DESC LIMIT 1
) t ON EXISTS (SELECT FROM weir_timelines o WHERE o.timeline < t.timeline)
