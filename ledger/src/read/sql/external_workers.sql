-- The live workers of other programs by queue, for these queues. A worker that has claimed from no queue with weir_claim
-- counts for each queue, because it may use a River client.
-- Parameters: $1 queues, $2 seconds without a heartbeat after which a process is dead. Reads all processes.
SELECT q.queue, count(*) AS workers
FROM unnest($1::text[]) AS q (queue)
JOIN processes p ON p.queues = '{}' OR q.queue = ANY (p.queues)
WHERE p.client_id NOT LIKE 'weir\_%' AND p.beat_at > clock_timestamp() - make_interval(secs => $2)
GROUP BY 1
