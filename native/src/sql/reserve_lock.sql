-- Takes the locks, in one order everywhere, in a statement of its own: what is read afterwards is read under them.
-- $1 holders, $2 event types, pairwise.
SELECT h.holder
FROM holders h
JOIN (SELECT DISTINCT holder, event_type FROM unnest($1::uuid[], $2::usage_event_type[]) AS u (holder, event_type)) w
    USING (holder, event_type)
ORDER BY h.holder, h.event_type
FOR NO KEY UPDATE OF h
