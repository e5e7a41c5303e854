-- The jobs of a request. $1 metadata with the request's id, $2 how many. By River's index of the metadata (GIN) while
-- scans are off: the planner has no statistics of the ids, and might prefer a scan.
SELECT id FROM river_job WHERE metadata @> $1 LIMIT $2
