-- The jobs of a request. Uses River's GIN index of the metadata, with scans turned off: the planner has no statistics
-- of the ids and might prefer a scan.
-- Parameters: $1 metadata with the request's id, $2 how many.
SELECT id FROM river_job WHERE metadata @> $1 LIMIT $2
