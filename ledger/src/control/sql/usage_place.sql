-- The position at which a reader continues after an event on another timeline. `timeline` is the server's timeline, if
-- it reports one. `first_xid` is the first transaction of that timeline alone. It is set if the event was lost, and
-- null until Weir has noted the timeline.
-- Parameters: $1 the event's transaction, $2 the event, $3 its timeline.
SELECT c.timeline,
       c.timeline = $3 OR EXISTS (SELECT FROM usage_events e WHERE e.id = $2 AND e.xid = $1::text::xid8) AS is_known,
       (SELECT min(t.first_xid::text::numeric)::text FROM weir_timelines t WHERE t.timeline > $3) AS first_xid
FROM (SELECT current_timeline() AS timeline) c
