-- The workers by queue.
-- Parameters: $1 seconds without a heartbeat after which a process is dead. Reads all processes.
SELECT pool.key AS queue, sum(pool.value::bigint)::bigint AS workers
FROM processes p, jsonb_each_text(p.pools) AS pool
WHERE p.beat_at > clock_timestamp() - make_interval(secs => $1)
GROUP BY 1
