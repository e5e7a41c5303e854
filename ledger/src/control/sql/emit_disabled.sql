-- Emits an event about a disabled webhook to the other ones that subscribe to it.
-- Parameters: $1 the webhook, $2 the event's id, $3 its body. Cost: a scan of webhooks, a small table.
SELECT deliver(array_agg(w.id), array_agg(NULL::uuid), array_agg($2::text), array_agg($3::text))
FROM subscribed_webhooks w
WHERE w.id <> $1 AND 'webhook.disabled' = ANY (w.events)
HAVING count(*) > 0
