-- Live jobs under these unique keys, and whose they are. $1 keys.
SELECT j.unique_key, j.id, s.holder
FROM unnest($1::bytea[]) AS k (unique_key)
JOIN river_job j ON j.unique_key = k.unique_key
    AND j.unique_key IS NOT NULL AND j.unique_states IS NOT NULL
    AND river_job_state_in_bitmask(j.unique_states, j.state)
LEFT JOIN submissions s ON s.job_id = j.id
