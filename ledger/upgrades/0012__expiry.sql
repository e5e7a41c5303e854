-- Jobs that still wait after a time are cancelled.
ALTER TABLE quota_reservations ADD COLUMN start_by timestamptz;
COMMENT ON COLUMN quota_reservations.start_by IS
    'After this time no attempt starts, and a waiting job is cancelled; null: never.';
CREATE INDEX quota_reservations_start_by ON quota_reservations (start_by) WHERE start_by IS NOT NULL;

ALTER TABLE weir_services ADD COLUMN expires_in double precision;
COMMENT ON COLUMN weir_services.expires_in IS
    'The time in seconds after which a job that still waits is cancelled; null: never.';

ALTER TABLE webhooks DROP CONSTRAINT webhooks_events_check;
ALTER TABLE webhooks
    ADD CONSTRAINT webhooks_events_check CHECK ((cardinality(events) > 0) AND (events <@ ARRAY['job.completed', 'job.failed', 'job.cancelled', 'job.expired', 'quota.threshold', 'quota.renewed', 'plan.changed', 'webhook.disabled']));
