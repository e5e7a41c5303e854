-- Other webhooks receive an event when a webhook is disabled.
ALTER TABLE webhooks
    DROP CONSTRAINT webhooks_events_check,
    ADD CONSTRAINT webhooks_events_check CHECK ((cardinality(events) > 0) AND (events <@ ARRAY['job.completed', 'job.failed', 'job.cancelled', 'quota.threshold', 'quota.renewed', 'plan.changed', 'webhook.disabled']));
COMMENT ON COLUMN webhooks.disabled_at IS
    'When it was disabled; null while events are sent to it.';
