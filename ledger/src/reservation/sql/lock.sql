-- Takes the locks, in one order everywhere, in a statement of its own: what is read afterwards is read under them.
-- skipping() makes the statement that leaves out what others have locked.
-- $1 holders, $2 meters, pairwise.
--
-- The order and the limit find the living version of a row (see ledger/schema/tables/holders.sql). They also keep the
-- planner from turning the look-ups by key into one pass over a table that it takes for small.
SELECT h.holder, h.event_type
FROM (
    SELECT DISTINCT holder, event_type
    FROM unnest($1::uuid[], $2::usage_event_type[]) AS u (holder, event_type)
    ORDER BY 1, 2
) w
CROSS JOIN LATERAL (
    SELECT k.holder, k.event_type FROM holders k WHERE k.holder = w.holder AND k.event_type = w.event_type
    ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE
) h
