-- Wakes the workers of queues that have a new job. $1 queues.
SELECT wake_queue(queue) FROM unnest($1::text[]) AS queue
