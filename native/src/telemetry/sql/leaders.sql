-- Whether River has a leader, which renews its row every few seconds; whether that is another client than Weir's; and
-- whether a process holds the lease on Weir's maintenance; and the timeline after a failover or a restore.
SELECT count(leader_id) > 0 AS known,
       count(leader_id) FILTER (WHERE leader_id NOT LIKE 'weir\_%') > 0 AS is_foreign,
       EXISTS (SELECT 1 FROM maintenance_lease WHERE expires_at > clock_timestamp()) AS done,
       (SELECT w.timeline FROM weir_timelines w
        WHERE EXISTS (SELECT FROM weir_timelines o WHERE o.timeline < w.timeline)
        ORDER BY w.timeline DESC LIMIT 1) AS timeline
FROM river_leader
WHERE expires_at > now()
