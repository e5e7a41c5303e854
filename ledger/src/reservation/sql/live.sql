-- Live jobs under these unique keys. $1 keys. Each key by itself: where statistics are of a time without unique jobs,
-- the planner would go through all that have a key.
SELECT k.unique_key, j.id
FROM unnest($1::bytea[]) AS k (unique_key)
CROSS JOIN LATERAL (
    SELECT l.id
    FROM river_job l
    WHERE l.unique_key = k.unique_key AND l.unique_key IS NOT NULL AND l.unique_states IS NOT NULL
      AND river_job_state_in_bitmask(l.unique_states, l.state)
    OFFSET 0
) j
