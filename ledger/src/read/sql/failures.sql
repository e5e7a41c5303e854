-- The jobs that failed permanently within the last day, by kind and reason, the most frequent first. Reads the newest
-- jobs by River's index of (state, finalized_at).
-- Parameters: $1 how many jobs to read, $2 how many reasons.
SELECT kind, reason, count(*) AS jobs, max(id) AS newest, max(finalized_at) AS last_at,
       (sum(count(*)) OVER ())::bigint AS seen
FROM (
    SELECT id, kind, finalized_at,
           left(rtrim(split_part(ltrim(coalesce(error_of(metadata, errors), ''),
                                       E' \r\n'), E'\n', 1), E'\r'), 300) AS reason
    FROM river_job
    WHERE state = 'discarded' AND finalized_at > now() - interval '1 day'
    ORDER BY finalized_at DESC
    LIMIT $1
) failed
GROUP BY kind, reason
ORDER BY jobs DESC, newest DESC
LIMIT $2
