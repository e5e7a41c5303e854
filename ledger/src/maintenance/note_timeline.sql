-- Notes the server's timeline if it is new. Runs before the lease records which transactions are open on it. Returns
-- the timeline if it is new and not the first one.
INSERT INTO weir_timelines AS t (timeline, first_xid)
SELECT c.timeline, coalesce((SELECT d.xid FROM maintenance_lease d), pg_snapshot_xmin(pg_current_snapshot()))
FROM (SELECT current_timeline() AS timeline) c
WHERE c.timeline IS NOT NULL AND NOT EXISTS (SELECT FROM weir_timelines o WHERE o.timeline = c.timeline)
ON CONFLICT DO NOTHING
RETURNING t.timeline, EXISTS (SELECT FROM weir_timelines o WHERE o.timeline < t.timeline) AS is_new
