-- Moves attempted_at of running attempts to now. Stores their start in the metadata once, so that the next call changes
-- no index. Does not wait for the disk: that would keep the rows locked, which may be about to be settled, and a lost
-- write is repeated.
-- Parameters: $1 the River client that runs them, $2 jobs, $3 their attempts.
WITH unhurried AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), alive AS (
    SELECT j.id, claim_of(j.attempt, j.attempted_by) AS claim
    FROM unhurried
    CROSS JOIN unnest($2::bigint[], $3::smallint[]) AS a (id, attempt)
    JOIN river_job j ON j.id = a.id AND j.attempt = a.attempt
    -- "IS TRUE" keeps the planner from using the state to choose an index.
    WHERE (j.state = 'running') IS TRUE AND j.attempted_by[array_upper(j.attempted_by, 1)] = $1
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE river_job j
SET attempted_at = clock_timestamp(),
    metadata = CASE WHEN j.metadata #>> '{weir:started,claim}' = a.claim THEN j.metadata
                    ELSE j.metadata || jsonb_build_object(
                        'weir:started', jsonb_build_object('at', j.attempted_at, 'claim', a.claim)) END
FROM alive a
WHERE j.id = a.id
