-- The jobs that ended within the last minute, by outcome.
-- Parameters: $1 the kind of deliveries, which do not count. A range of River's index of states and ends.
SELECT count(*) FILTER (WHERE state = 'completed') AS completed,
       count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
       count(*) FILTER (WHERE state = 'discarded') AS failed
FROM river_job
WHERE state IN ('completed', 'cancelled', 'discarded')
  AND finalized_at > now() - interval '1 minute' AND kind <> $1
