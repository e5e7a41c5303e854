CREATE TABLE webhooks (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    url text NOT NULL,
    events text[] NOT NULL,
    thresholds smallint[] NOT NULL DEFAULT '{80,100}'::smallint[],
    secret text,
    previous_secret text,
    previous_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at timestamptz,
    disabled_because text,
    removed_at timestamptz,
    older_secret text,
    delivered_at timestamptz,
    PRIMARY KEY (id),
    CONSTRAINT webhooks_check CHECK ((secret IS NOT NULL) OR (removed_at IS NOT NULL)),
    CONSTRAINT webhooks_check1 CHECK ((previous_secret IS NULL) = (previous_until IS NULL)),
    CONSTRAINT webhooks_check2 CHECK ((disabled_at IS NULL) = (disabled_because IS NULL)),
    CONSTRAINT webhooks_events_check CHECK ((cardinality(events) > 0) AND (events <@ ARRAY['job.completed', 'job.failed', 'job.cancelled', 'job.expired', 'quota.threshold', 'quota.renewed', 'plan.changed', 'webhook.disabled'])),
    CONSTRAINT webhooks_thresholds_check CHECK ((0 < ALL (thresholds)) AND ((cardinality(thresholds) >= 1) AND (cardinality(thresholds) <= 20))),
    CONSTRAINT webhooks_url_check CHECK (octet_length(url) BETWEEN 1 AND 2000)
);

COMMENT ON TABLE webhooks IS
    'The webhooks. The secrets sign deliveries, so they are stored as they are.';
COMMENT ON COLUMN webhooks.id IS
    'The webhook''s id.';
COMMENT ON COLUMN webhooks.url IS
    'Where events are delivered to.';
COMMENT ON COLUMN webhooks.events IS
    'The types of events that are delivered.';
COMMENT ON COLUMN webhooks.thresholds IS
    'At which percentages of a limit quota.threshold is emitted.';
COMMENT ON COLUMN webhooks.secret IS
    'Signs deliveries (Standard Webhooks).';
COMMENT ON COLUMN webhooks.previous_secret IS
    'The rotated secret.';
COMMENT ON COLUMN webhooks.previous_until IS
    'Until when the rotated secret signs too.';
COMMENT ON COLUMN webhooks.created_at IS
    'When it was added.';
COMMENT ON COLUMN webhooks.disabled_at IS
    'When it was disabled; null while events are sent to it.';
COMMENT ON COLUMN webhooks.disabled_because IS
    'Why deliveries stopped.';
COMMENT ON COLUMN webhooks.removed_at IS
    'The row stays until its last deliveries have ended.';
COMMENT ON COLUMN webhooks.older_secret IS
    'Also signs until previous_until, when the secret was rotated twice within a day.';
COMMENT ON COLUMN webhooks.delivered_at IS
    'When an event was last delivered, up to a minute earlier.';

CREATE UNIQUE INDEX webhooks_url ON webhooks (url) WHERE removed_at IS NULL;
