-- Takes the locks in the common order, in a separate statement, so that later statements read under them. The function
-- skipping() derives a statement that skips locked rows.
-- Parameters: $1 holders, $2 meters, pairwise.
--
-- The order and the limit find the live version of a row (see ledger/schema/tables/holders.sql). They also keep the
-- planner from replacing the look-ups by key with one scan of a table that it considers small.
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
