-- The jobs of a request. $1 metadata with the request's id, $2 how many. By River's index of the metadata (GIN), if scans
-- are off: the planner knows nothing of the ids and may take a scan for cheaper.
SELECT id FROM river_job WHERE metadata @> $1 LIMIT $2
