-- One row with three facts:
--
-- - River's leader, which renews its row every few seconds
-- - the process that runs maintenance
-- - the timeline after the last failover or restore
SELECT l.leader_id,
       l.elected_at,
       d.process,
       d.since,
       t.timeline,
       t.seen_at
FROM (SELECT) AS one
LEFT JOIN river_leader l ON l.expires_at > now()
LEFT JOIN maintenance_lease d ON d.expires_at > clock_timestamp()
-- A database's first timeline does not follow a failover.
LEFT JOIN LATERAL (
    SELECT * FROM weir_timelines w ORDER BY w.timeline DESC LIMIT 1
) t ON EXISTS (SELECT FROM weir_timelines o WHERE o.timeline < t.timeline)
