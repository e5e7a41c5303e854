-- Unfinished jobs with these unique keys. Looks up each key separately: if statistics are from a time without unique
-- jobs, the planner would scan all jobs with a key.
-- Parameters: $1 keys.
SELECT k.unique_key, j.id
FROM unnest($1::bytea[]) AS k (unique_key)
CROSS JOIN LATERAL (
    SELECT l.id
    FROM river_job l
    WHERE l.unique_key = k.unique_key AND l.unique_key IS NOT NULL AND l.unique_states IS NOT NULL
      AND river_job_state_in_bitmask(l.unique_states, l.state)
    OFFSET 0
) j
