-- Submissions and settlements of all callers go through submit_many() and settle_many(). Their parameters are new types,
-- and the functions that they replace go. The parameters or results of account_of() and submit_options() change.
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
    unique_key bytea
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

DROP FUNCTION IF EXISTS account_of(uuid, text, boolean, timestamptz, timestamptz, smallint, timestamptz);
DROP FUNCTION IF EXISTS submit_options(jsonb);
DROP FUNCTION IF EXISTS lock_account(uuid, text, text);
DROP FUNCTION IF EXISTS room_for(bigint, text[], bigint[], bigint[], bigint[], bigint[], timestamptz[], bigint, bigint);
DROP FUNCTION IF EXISTS submission_outcome(uuid, text, boolean, int, int, int, subscription_plans, jsonb, boolean);
DROP FUNCTION IF EXISTS charge_reservation(bigint, uuid, boolean, bigint);
DROP FUNCTION IF EXISTS end_reservation(bigint, uuid, boolean, bigint);
DROP FUNCTION IF EXISTS pass_on_slots(uuid, text, int, int);
DROP FUNCTION IF EXISTS promote_parked(uuid[], usage_event_type[], int[], text[], int[], int[], int[]);
