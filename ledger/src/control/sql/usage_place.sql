-- Where a reader of usage events goes on who has read up to an event on another timeline. $1 the event's transaction, $2 the
-- event, $3 the timeline. `timeline` is the server's, if it says. `first_xid` is where that one's own transactions start: set
-- when the event is lost, and null when nobody has noted the timeline yet.
SELECT c.timeline,
       c.timeline = $3 OR EXISTS (SELECT FROM usage_events e WHERE e.id = $2 AND e.xid = $1::text::xid8) AS is_known,
       (SELECT min(t.first_xid::text::numeric)::text FROM weir_timelines t WHERE t.timeline > $3) AS first_xid
FROM (SELECT current_timeline() AS timeline) c
