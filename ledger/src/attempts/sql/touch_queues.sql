-- Creates the rows of queues, or shows River's leader that they are in use, as River's clients do.
-- Parameters: $1 queues.
INSERT INTO river_queue (name, metadata, updated_at)
SELECT q.name, '{}', now() FROM unnest($1::text[]) AS q (name) ORDER BY q.name
ON CONFLICT (name) DO UPDATE SET updated_at = excluded.updated_at
