-- The 99th percentile of the time from when a job was ready until its first attempt started, in milliseconds.
-- Parameters: $1 the kind of deliveries, which do not count. Of the jobs that ended within the last minute, the 10,000
-- most recent. A range of River's index of states and ends. NULL without such a job.
SELECT percentile_disc(0.99) WITHIN GROUP (ORDER BY j.waited)::bigint AS start_p99_ms
FROM (
    SELECT greatest(0, round(1000 * extract(epoch FROM
               attempt_started_at(metadata, attempt, attempted_by, attempted_at) - scheduled_at))) AS waited
    FROM river_job
    WHERE state IN ('completed', 'discarded') AND attempt = 1
      AND finalized_at > now() - interval '1 minute' AND kind <> $1
    ORDER BY finalized_at DESC
    LIMIT 10000
) j
