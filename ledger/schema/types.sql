-- Types and domains. The names are those of ADR-21 and ADR-10.

CREATE DOMAIN usage_event_type AS text COLLATE "C";
COMMENT ON DOMAIN usage_event_type IS 'The name of a meter.';

CREATE DOMAIN plan_tier AS text COLLATE "C";
COMMENT ON DOMAIN plan_tier IS 'The name of a plan.';

CREATE TYPE subscription_status AS ENUM ('active', 'canceled', 'expired');
COMMENT ON TYPE subscription_status IS 'Whether a subscription is in force.';

CREATE TYPE submission AS (
    holder uuid,
    user_id uuid,
    subject text,
    service text,
    meter usage_event_type,
    kind text,
    max_attempts smallint,
    args jsonb,
    metadata jsonb,
    priority smallint,
    amount bigint,
    run_at timestamptz,
    idempotency_key text,
    request_hash bytea,
    unique_key bytea,
    tags text[]
);
COMMENT ON TYPE submission IS 'A parameter of submit_many: one submission.';

CREATE TYPE ended_attempt AS (
    job_id bigint,
    attempt smallint,
    created_at timestamptz,
    used bigint,
    output jsonb
);
COMMENT ON TYPE ended_attempt IS 'A parameter of settle_many: an attempt that succeeded, or a job that may have ended.';

CREATE TYPE settlement AS (
    job_id bigint,
    outcome text,
    ends boolean,
    yields boolean,
    completes boolean,
    state text,
    request_id text,
    used bigint,
    output jsonb,
    due_at timestamptz,
    holder uuid,
    meter usage_event_type,
    user_id uuid,
    held_slot boolean,
    was_parked boolean,
    period_start timestamptz,
    windows smallint,
    reserved_at timestamptz,
    reserved bigint,
    from_grants bigint,
    overage bigint,
    charged bigint
);
COMMENT ON TYPE settlement IS 'A part of settle_many: what happens to one job and its reservation.';
