-- The tables into which an import copies its source, in one statement and so from one snapshot.
CREATE TEMPORARY TABLE import_users
    (id text, holder uuid, known_as text, is_new boolean NOT NULL DEFAULT false, is_deleted boolean NOT NULL DEFAULT false)
    ON COMMIT DROP;
-- Before any row is updated: otherwise PostgreSQL does not use an index in the transaction that creates it. A hash index
-- also takes ids that are too long for a B-tree.
CREATE INDEX ON pg_temp.import_users USING hash (id);
CREATE TEMPORARY TABLE import_plans (id text, tier text) ON COMMIT DROP;
CREATE TEMPORARY TABLE import_subscriptions
    (user_id text, plan_id text, status text, current_period_start timestamptz, current_period_end timestamptz,
     updated_at timestamptz, subscription text, event_id text)
    ON COMMIT DROP;
CREATE TEMPORARY TABLE import_usage
    (id text, user_id text, event_type text, quota_amount numeric, created_at timestamptz,
     event_id uuid, is_new boolean NOT NULL DEFAULT false)
    ON COMMIT DROP;
CREATE TEMPORARY TABLE import_reservations
    (user_id text, event_type text, reserved_amount numeric, job_id bigint, created_at timestamptz,
     is_open boolean NOT NULL DEFAULT false, is_new boolean NOT NULL DEFAULT false)
    ON COMMIT DROP;
-- The changes to log at the end.
CREATE TEMPORARY TABLE import_log (holder uuid, before jsonb, after jsonb) ON COMMIT DROP;
