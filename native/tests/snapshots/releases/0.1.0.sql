SET search_path = "public";

-- River's 1
BEGIN;
CREATE TABLE river_migration(
  id bigserial PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT NOW(),
  version bigint NOT NULL,
  CONSTRAINT version CHECK (version >= 1)
);

CREATE UNIQUE INDEX ON river_migration USING btree(version);
INSERT INTO river_migration (version) VALUES (1);
COMMIT;

-- River's 2
BEGIN;
CREATE TYPE river_job_state AS ENUM(
  'available',
  'cancelled',
  'completed',
  'discarded',
  'retryable',
  'running',
  'scheduled'
);

CREATE TABLE river_job(
  -- 8 bytes
  id bigserial PRIMARY KEY,

  -- 8 bytes (4 bytes + 2 bytes + 2 bytes)
  --
  -- `state` is kept near the top of the table for operator convenience -- when
  -- looking at jobs with `SELECT *` it'll appear first after ID. The other two
  -- fields aren't as important but are kept adjacent to `state` for alignment
  -- to get an 8-byte block.
  state river_job_state NOT NULL DEFAULT 'available',
  attempt smallint NOT NULL DEFAULT 0,
  max_attempts smallint NOT NULL,

  -- 8 bytes each (no alignment needed)
  attempted_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT NOW(),
  finalized_at timestamptz,
  scheduled_at timestamptz NOT NULL DEFAULT NOW(),

  -- 2 bytes (some wasted padding probably)
  priority smallint NOT NULL DEFAULT 1,

  -- types stored out-of-band
  args jsonb,
  attempted_by text[],
  errors jsonb[],
  kind text NOT NULL,
  metadata jsonb NOT NULL DEFAULT '{}',
  queue text NOT NULL DEFAULT 'default',
  tags varchar(255)[],

  CONSTRAINT finalized_or_finalized_at_null CHECK ((state IN ('cancelled', 'completed', 'discarded') AND finalized_at IS NOT NULL) OR finalized_at IS NULL),
  CONSTRAINT max_attempts_is_positive CHECK (max_attempts > 0),
  CONSTRAINT priority_in_range CHECK (priority >= 1 AND priority <= 4),
  CONSTRAINT queue_length CHECK (char_length(queue) > 0 AND char_length(queue) < 128),
  CONSTRAINT kind_length CHECK (char_length(kind) > 0 AND char_length(kind) < 128)
);

-- We may want to consider adding another property here after `kind` if it seems
-- like it'd be useful for something.
CREATE INDEX river_job_kind ON river_job USING btree(kind);

CREATE INDEX river_job_state_and_finalized_at_index ON river_job USING btree(state, finalized_at) WHERE finalized_at IS NOT NULL;

CREATE INDEX river_job_prioritized_fetching_index ON river_job USING btree(state, queue, priority, scheduled_at, id);

CREATE INDEX river_job_args_index ON river_job USING GIN(args);

CREATE INDEX river_job_metadata_index ON river_job USING GIN(metadata);

CREATE OR REPLACE FUNCTION river_job_notify()
  RETURNS TRIGGER
  AS $$
DECLARE
  payload json;
BEGIN
  IF NEW.state = 'available' THEN
    -- Notify will coalesce duplicate notifications within a transaction, so
    -- keep these payloads generalized:
    payload = json_build_object('queue', NEW.queue);
    PERFORM
      pg_notify('river_insert', payload::text);
  END IF;
  RETURN NULL;
END;
$$
LANGUAGE plpgsql;

CREATE TRIGGER river_notify
  AFTER INSERT ON river_job
  FOR EACH ROW
  EXECUTE PROCEDURE river_job_notify();

CREATE UNLOGGED TABLE river_leader(
    -- 8 bytes each (no alignment needed)
    elected_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,

    -- types stored out-of-band
    leader_id text NOT NULL,
    name text PRIMARY KEY,

    CONSTRAINT name_length CHECK (char_length(name) > 0 AND char_length(name) < 128),
    CONSTRAINT leader_id_length CHECK (char_length(leader_id) > 0 AND char_length(leader_id) < 128)
);
INSERT INTO river_migration (version) VALUES (2);
COMMIT;

-- River's 3
BEGIN;
ALTER TABLE river_job ALTER COLUMN tags SET DEFAULT '{}';
UPDATE river_job SET tags = '{}' WHERE tags IS NULL;
ALTER TABLE river_job ALTER COLUMN tags SET NOT NULL;
INSERT INTO river_migration (version) VALUES (3);
COMMIT;

-- River's 4
BEGIN;
-- The args column never had a NOT NULL constraint or default value at the
-- database level, though we tried to ensure one at the application level.
ALTER TABLE river_job ALTER COLUMN args SET DEFAULT '{}';
UPDATE river_job SET args = '{}' WHERE args IS NULL;
ALTER TABLE river_job ALTER COLUMN args SET NOT NULL;
ALTER TABLE river_job ALTER COLUMN args DROP DEFAULT;

-- The metadata column never had a NOT NULL constraint or default value at the
-- database level, though we tried to ensure one at the application level.
ALTER TABLE river_job ALTER COLUMN metadata SET DEFAULT '{}';
UPDATE river_job SET metadata = '{}' WHERE metadata IS NULL;
ALTER TABLE river_job ALTER COLUMN metadata SET NOT NULL;

-- The 'pending' job state will be used for upcoming functionality:
ALTER TYPE river_job_state ADD VALUE IF NOT EXISTS 'pending' AFTER 'discarded';

ALTER TABLE river_job DROP CONSTRAINT finalized_or_finalized_at_null;
ALTER TABLE river_job ADD CONSTRAINT finalized_or_finalized_at_null CHECK (
    (finalized_at IS NULL AND state NOT IN ('cancelled', 'completed', 'discarded')) OR
    (finalized_at IS NOT NULL AND state IN ('cancelled', 'completed', 'discarded'))
);

DROP TRIGGER river_notify ON river_job;
DROP FUNCTION river_job_notify;

--
-- Create table `river_queue`.
--

CREATE TABLE river_queue (
    name text PRIMARY KEY NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    metadata jsonb NOT NULL DEFAULT '{}' ::jsonb,
    paused_at timestamptz,
    updated_at timestamptz NOT NULL
);

--
-- Alter `river_leader` to add a default value of 'default` to `name`.
--

ALTER TABLE river_leader
    ALTER COLUMN name SET DEFAULT 'default',
    DROP CONSTRAINT name_length,
    ADD CONSTRAINT name_length CHECK (name = 'default');
INSERT INTO river_migration (version) VALUES (4);
COMMIT;

-- River's 5
BEGIN;
--
-- Rebuild the migration table so it's based on `(line, version)`.
--

DO
$body$
BEGIN
    -- Tolerate users who may be using their own migration system rather than
    -- River's. If they are, they will have skipped version 001 containing
    -- `CREATE TABLE river_migration`, so this table won't exist.
    IF (SELECT to_regclass('river_migration') IS NOT NULL) THEN
        ALTER TABLE river_migration
            RENAME TO river_migration_old;

        CREATE TABLE river_migration(
            line TEXT NOT NULL,
            version bigint NOT NULL,
            created_at timestamptz NOT NULL DEFAULT NOW(),
            CONSTRAINT line_length CHECK (char_length(line) > 0 AND char_length(line) < 128),
            CONSTRAINT version_gte_1 CHECK (version >= 1),
            PRIMARY KEY (line, version)
        );

        INSERT INTO river_migration
            (created_at, line, version)
        SELECT created_at, 'main', version
        FROM river_migration_old;

        DROP TABLE river_migration_old;
    END IF;
END;
$body$
LANGUAGE 'plpgsql'; 

--
-- Add `river_job.unique_key` and bring up an index on it.
--

-- These statements use `IF NOT EXISTS` to allow users with a `river_job` table
-- of non-trivial size to build the index `CONCURRENTLY` out of band of this
-- migration, then follow by completing the migration.
ALTER TABLE river_job
    ADD COLUMN IF NOT EXISTS unique_key bytea;

CREATE UNIQUE INDEX IF NOT EXISTS river_job_kind_unique_key_idx ON river_job (kind, unique_key) WHERE unique_key IS NOT NULL;

--
-- Create `river_client` and derivative.
--
-- This feature hasn't quite yet been implemented, but we're taking advantage of
-- the migration to add the schema early so that we can add it later without an
-- additional migration.
--

CREATE UNLOGGED TABLE river_client (
    id text PRIMARY KEY NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    metadata jsonb NOT NULL DEFAULT '{}',
    paused_at timestamptz,
    updated_at timestamptz NOT NULL,
    CONSTRAINT name_length CHECK (char_length(id) > 0 AND char_length(id) < 128)
);

-- Differs from `river_queue` in that it tracks the queue state for a particular
-- active client.
CREATE UNLOGGED TABLE river_client_queue (
    river_client_id text NOT NULL REFERENCES river_client (id) ON DELETE CASCADE,
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    max_workers bigint NOT NULL DEFAULT 0,
    metadata jsonb NOT NULL DEFAULT '{}',
    num_jobs_completed bigint NOT NULL DEFAULT 0,
    num_jobs_running bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (river_client_id, name),
    CONSTRAINT name_length CHECK (char_length(name) > 0 AND char_length(name) < 128),
    CONSTRAINT num_jobs_completed_zero_or_positive CHECK (num_jobs_completed >= 0),
    CONSTRAINT num_jobs_running_zero_or_positive CHECK (num_jobs_running >= 0)
);
INSERT INTO river_migration (line, version) VALUES ('main', 5);
COMMIT;

-- River's 6
BEGIN;
CREATE OR REPLACE FUNCTION river_job_state_in_bitmask(bitmask BIT(8), state river_job_state)
RETURNS boolean
LANGUAGE SQL
IMMUTABLE
AS $$
    SELECT CASE state
        WHEN 'available' THEN get_bit(bitmask, 7)
        WHEN 'cancelled' THEN get_bit(bitmask, 6)
        WHEN 'completed' THEN get_bit(bitmask, 5)
        WHEN 'discarded' THEN get_bit(bitmask, 4)
        WHEN 'pending'   THEN get_bit(bitmask, 3)
        WHEN 'retryable' THEN get_bit(bitmask, 2)
        WHEN 'running'   THEN get_bit(bitmask, 1)
        WHEN 'scheduled' THEN get_bit(bitmask, 0)
        ELSE 0
    END = 1;
$$;

--
-- Add `river_job.unique_states` and bring up an index on it.
--
-- This column may exist already if users manually created the column and index
-- as instructed in the changelog so the index could be created `CONCURRENTLY`.
--
ALTER TABLE river_job ADD COLUMN IF NOT EXISTS unique_states BIT(8);

-- This statement uses `IF NOT EXISTS` to allow users with a `river_job` table
-- of non-trivial size to build the index `CONCURRENTLY` out of band of this
-- migration, then follow by completing the migration.
CREATE UNIQUE INDEX IF NOT EXISTS river_job_unique_idx ON river_job (unique_key)
    WHERE unique_key IS NOT NULL
      AND unique_states IS NOT NULL
      AND river_job_state_in_bitmask(unique_states, state);

-- Remove the old unique index. Users who are actively using the unique jobs
-- feature and who wish to avoid deploy downtime may want od drop this in a
-- subsequent migration once all jobs using the old unique system have been
-- completed (i.e. no more rows with non-null unique_key and null
-- unique_states).
DROP INDEX river_job_kind_unique_key_idx;
INSERT INTO river_migration (line, version) VALUES ('main', 6);
COMMIT;

-- River's 7
BEGIN;
--
-- Notification outbox.
--

CREATE TABLE river_notification (
    id bigserial PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    payload text NOT NULL,
    topic text NOT NULL,
    CONSTRAINT topic_length CHECK (length(topic) > 0 AND length(topic) < 128)
);

CREATE INDEX river_notification_created_at_idx ON river_notification (created_at);
CREATE INDEX river_notification_topic_id_idx ON river_notification (topic, id);

--
-- SQLite JSONB conversion.
--
-- No-op. Postgres already stores River JSON columns as jsonb.

--
-- SQL cleanup.
--

--
-- Drop unused tables `river_client` and `river_client_queue`.
--

DROP TABLE river_client_queue;
DROP TABLE river_client;

--
-- Adds `DEFAULT 25` to `river_job.max_attempts`.
--

ALTER TABLE river_job
    ALTER COLUMN max_attempts SET DEFAULT 25;

--
-- Changes `river_queue.updated_at` to have a default of `CURRENT_TIMESTAMP`.
--

ALTER TABLE river_queue
    ALTER COLUMN updated_at SET DEFAULT CURRENT_TIMESTAMP;
INSERT INTO river_migration (line, version) VALUES ('main', 7);
COMMIT;

-- River's 8
BEGIN;
-- No-op. Postgres sequences already prevent automatically generated job IDs
-- from being reused.
SELECT 1;
INSERT INTO river_migration (line, version) VALUES ('main', 8);
COMMIT;

BEGIN;
SET LOCAL search_path = "public", pg_temp;
SET LOCAL check_function_bodies = off;
-- The roles for other languages: weir_submitter may submit, weir_worker may work. Roles belong to the server, so all
-- Weirs on it share them.
DO $$
DECLARE
    r text;
BEGIN
    FOREACH r IN ARRAY ARRAY['weir_submitter', 'weir_worker'] LOOP
        CONTINUE WHEN to_regrole(r) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', r);
        EXCEPTION
            -- Another Weir on this server created it first.
            WHEN duplicate_object OR unique_violation THEN NULL;
            -- `weir migrate` reports what is missing.
            WHEN insufficient_privilege THEN NULL;
        END;
    END LOOP;
END
$$;


-- types.sql
-- Types and domains. The names are those of ADR-21 and ADR-10.

CREATE DOMAIN usage_event_type AS text COLLATE "C";
COMMENT ON DOMAIN usage_event_type IS 'The name of a meter.';

CREATE DOMAIN plan_tier AS text COLLATE "C";
COMMENT ON DOMAIN plan_tier IS 'The name of a plan.';

CREATE TYPE subscription_status AS ENUM ('active', 'canceled', 'expired');
COMMENT ON TYPE subscription_status IS 'Whether a subscription is in force.';

-- functions/counters/count_limited_windows.sql
-- Trigger of plan_limits: makes sure that every window with a limit is counted. It is counted in every plan, so that
-- usage is known after a change of plan. Runs once before the rows, to take a lock: each writer must see the limits of
-- others.
-- Cost: a scan of plan_limits, which has one row for each plan and meter.
CREATE OR REPLACE FUNCTION count_limited_windows() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF TG_WHEN = 'BEFORE' THEN
        LOCK TABLE plan_limits IN SHARE UPDATE EXCLUSIVE MODE;
        RETURN NULL;
    END IF;
    UPDATE plan_limits l
    SET counted = c.windows
    FROM (
        SELECT p.event_type, coalesce(bit_or(s.mask) FILTER (WHERE w.most IS NOT NULL), 0)::smallint AS windows
        FROM plan_limits p
        CROSS JOIN LATERAL (VALUES ('day', p.day), ('hour', p.hour), ('minute', p.minute)) AS w (span, most)
        JOIN short_windows() s ON s.span = w.span
        GROUP BY 1
    ) c
    WHERE l.event_type = c.event_type AND l.counted <> c.windows;
    RETURN NULL;
END
$$;

-- functions/counters/count_reservations.sql
-- Trigger of quota_reservations: keeps slots_in_use, parked and reserved equal to the reservations that operators,
-- imports and other programs write. Weir's own transactions update the counters themselves and set weir.counters to
-- kept.
-- Errors: 23503 for a name that is not a meter.
-- Cost: one look-up and one write for each account and window of the statement's rows. Waits for the locks of their
-- holders.
CREATE OR REPLACE FUNCTION count_reservations() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM lock_holders(ARRAY(SELECT DISTINCT holder FROM old_rows));
        UPDATE holders h SET slots_in_use = h.slots_in_use - o.slots, parked = h.parked - o.parked
        FROM (SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked
              FROM old_rows GROUP BY 1, 2) o
        WHERE (h.holder, h.event_type) = (o.holder, o.event_type);
        UPDATE quota_balances b SET reserved = b.reserved - o.amount, from_grants = b.from_grants - o.from_grants
        FROM (SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.reserved_amount) AS amount,
                     coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0) AS from_grants
              FROM old_rows r
              CROSS JOIN LATERAL windows_of(r.period_start, r.windows, r.created_at) w
              WHERE r.user_id IS NOT NULL GROUP BY 1, 2, 3, 4) o
        WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, o.span, o.period_start);
    END IF;
    IF TG_OP = 'DELETE' THEN
        PERFORM settle_draws(array_agg(o.job_id), array_agg(0::bigint)) FROM old_rows o WHERE o.from_grants > 0;
    ELSE
        PERFORM require_meters(ARRAY(SELECT DISTINCT event_type::text FROM new_rows));
        INSERT INTO holders AS h (holder, event_type, user_id, slots_in_use, parked)
        SELECT holder, event_type, user_id, count(admitted_at), count(parked_at)
        FROM new_rows GROUP BY 1, 2, 3 ORDER BY 1, 2
        ON CONFLICT (holder, event_type) DO UPDATE
            SET slots_in_use = h.slots_in_use + excluded.slots_in_use, parked = h.parked + excluded.parked,
                parked_from = CASE WHEN excluded.parked > 0 THEN 0 ELSE h.parked_from END;
        INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, reserved, from_grants)
        SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.reserved_amount),
               coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0)
        FROM new_rows r
        CROSS JOIN LATERAL windows_of(r.period_start, r.windows, r.created_at) w
        WHERE r.user_id IS NOT NULL GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (user_id, event_type, span, period_start)
            DO UPDATE SET reserved = b.reserved + excluded.reserved, from_grants = b.from_grants + excluded.from_grants;
    END IF;
    RETURN NULL;
END
$$;

-- functions/counters/count_usage_events.sql
-- Trigger of usage_events: keeps used equal to the usage events that operators, imports and other programs write.
-- Weir's own transactions update the counters themselves and set weir.counters to kept.
-- Errors: 23503 for a name that is not a meter.
-- Cost: one look-up and one write for each account and window of the statement's rows. Waits for the locks of their
-- holders.
CREATE OR REPLACE FUNCTION count_usage_events() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM lock_holders(ARRAY(SELECT DISTINCT user_id FROM old_rows));
        UPDATE quota_balances b SET used = b.used - o.amount, from_grants = b.from_grants - o.from_grants
        FROM (SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.quota_amount) AS amount,
                     coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0) AS from_grants
              FROM old_rows r
              CROSS JOIN LATERAL windows_of(r.period_start, r.windows, coalesce(r.reserved_at, r.created_at)) w
              GROUP BY 1, 2, 3, 4) o
        WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, o.span, o.period_start);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM require_meters(ARRAY(SELECT DISTINCT event_type::text FROM new_rows));
        PERFORM lock_holders(ARRAY(SELECT DISTINCT user_id FROM new_rows));
        INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, used, from_grants)
        SELECT r.user_id, r.event_type, w.span, w.period_start, sum(r.quota_amount),
               coalesce(sum(r.from_grants) FILTER (WHERE w.span = 'month'), 0)
        FROM new_rows r
        CROSS JOIN LATERAL windows_of(r.period_start, r.windows, coalesce(r.reserved_at, r.created_at)) w
        GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (user_id, event_type, span, period_start)
            DO UPDATE SET used = b.used + excluded.used, from_grants = b.from_grants + excluded.from_grants;
    END IF;
    RETURN NULL;
END
$$;

-- functions/counters/fill_quota_row.sql
-- Trigger of quota_reservations and usage_events. Fills in the period, windows and holder of rows that another program
-- inserts without them.
-- Cost: three look-ups by key a row that has no period.
CREATE OR REPLACE FUNCTION fill_quota_row() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NEW.period_start IS NULL AND NEW.user_id IS NOT NULL THEN
        NEW.period_start := period_start_of(NEW.user_id, NEW.created_at);
        NEW.windows := coalesce((SELECT max(l.counted) FROM plan_limits l WHERE l.event_type = NEW.event_type), 0);
    END IF;
    -- Nested, because usage_events does not have the column.
    IF TG_TABLE_NAME = 'quota_reservations' THEN
        NEW.holder := coalesce(NEW.holder, NEW.user_id);
    END IF;
    RETURN NEW;
END
$$;

-- functions/counters/follow_monthly_limits.sql
-- Trigger of subscription_plans: gives a new plan limits for every meter, and copies a changed ..._monthly_limit to
-- plan_limits.
-- Cost: one write a meter.
CREATE OR REPLACE FUNCTION follow_monthly_limits() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    new_plan jsonb := to_jsonb(NEW);
    old_plan jsonb := CASE WHEN TG_OP = 'UPDATE' THEN to_jsonb(OLD) ELSE '{}' END;
BEGIN
    INSERT INTO plan_limits (plan_id, event_type, month, slots)
    SELECT NEW.id, m.name, (new_plan ->> (m.name || '_monthly_limit'))::bigint,
           coalesce((SELECT l.slots FROM plan_limits l JOIN subscription_plans p ON p.id = l.plan_id
                     WHERE p.is_default AND l.event_type = m.name), 1)
    FROM meters m
    ON CONFLICT DO NOTHING;
    UPDATE plan_limits l
    SET month = (new_plan ->> (l.event_type || '_monthly_limit'))::bigint
    WHERE l.plan_id = NEW.id
      AND new_plan -> (l.event_type || '_monthly_limit') IS DISTINCT FROM old_plan -> (l.event_type || '_monthly_limit');
    RETURN NULL;
END
$$;

-- functions/counters/note_log_timeline.sql
-- Trigger of admin_log: notes the server's timeline, so that readers notice that it has changed. A default could not call
-- current_timeline(), because tables are created before it.
-- Cost: that of current_timeline().
CREATE OR REPLACE FUNCTION note_log_timeline() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    NEW.timeline := current_timeline();
    RETURN NEW;
END
$$;

-- functions/counters/refuse_log_changes.sql
-- Trigger of admin_log: the log is append-only. Refuses (P0001) every change and deletion.
-- Cost: no table.
CREATE OR REPLACE FUNCTION refuse_log_changes() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: its rows cannot be changed or deleted', TG_TABLE_NAME;
END
$$;

-- functions/counters/remember_grants.sql
-- Trigger of holders: when a deleted holders row is created again, notes whether its user has grants. Used-up grants do
-- not matter, and the index does not contain them.
-- Cost: one look-up by index.
CREATE OR REPLACE FUNCTION remember_grants() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    NEW.has_grants := EXISTS (
        SELECT FROM grants g WHERE g.user_id = NEW.user_id AND g.event_type = NEW.event_type AND g.used < g.amount);
    RETURN NEW;
END
$$;

-- functions/counters/serialize_log.sql
-- Trigger of admin_log: serializes the log's writers, so that ids follow the order of commits. A reader that continues
-- after an id then misses no row.
-- Cost: one row. Waits until the transaction of the log's last writer has ended.
CREATE OR REPLACE FUNCTION serialize_log() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM FROM weir_locks l WHERE l.name = TG_TABLE_NAME FOR NO KEY UPDATE;
    RETURN NULL;
END
$$;

-- functions/counters/touch_updated_at.sql
-- Trigger of user_subscriptions: notes the time of a change of plan by any writer. Maintenance finds the change by this
-- time and promotes parked jobs.
-- Cost: no table.
CREATE OR REPLACE FUNCTION touch_updated_at() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    NEW.updated_at := clock_timestamp();
    RETURN NEW;
END
$$;

-- functions/counters/write_monthly_limit.sql
-- Trigger of plan_limits: copies a changed plan_limits.month to the plan's ..._monthly_limit immediately. If the column
-- lagged behind, setting it to its old value would have no effect.
-- Cost: one look-up in the system catalogue, one write.
CREATE OR REPLACE FUNCTION write_monthly_limit() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    written text := NEW.event_type || '_monthly_limit';
BEGIN
    IF EXISTS (SELECT 1 FROM pg_attribute
               WHERE attrelid = 'subscription_plans'::regclass AND attname = written AND NOT attisdropped) THEN
        EXECUTE format('UPDATE subscription_plans SET %1$I = $1 WHERE id = $2 AND %1$I IS DISTINCT FROM $1', written)
            USING NEW.month, NEW.plan_id;
    END IF;
    RETURN NULL;
END
$$;

-- functions/events/check_threshold_subscribers.sql
-- Trigger of quota_balances: notes once per statement, in weir.thresholds, whether any webhook subscribes to
-- thresholds. The row triggers read it. Most installations have no such webhook, and every settlement updates balances.
-- Cost: a scan of webhooks, a small table.
CREATE OR REPLACE FUNCTION check_threshold_subscribers() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM set_config('weir.thresholds', CASE WHEN EXISTS (
        SELECT FROM active_webhooks w WHERE w.has_thresholds
    ) THEN 'thresholds' ELSE '' END, true);
    RETURN NULL;
END
$$;

-- functions/events/emit_job_ends.sql
-- Trigger of quota_reservations: emits job.completed, job.failed and job.cancelled. A job has ended when River has
-- finalized it and its reservation is deleted. A settlement, a cancellation or reconciliation deletes the reservation.
-- Cost: a scan of webhooks, a small table; with a subscriber one look-up by key and one job for each job that ended.
CREATE OR REPLACE FUNCTION emit_job_ends() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
DECLARE
    wanted text[];
    subscribed record;
BEGIN
    SELECT array_agg(t.type) INTO wanted
    FROM active_webhooks w CROSS JOIN unnest(w.events) AS t (type)
    WHERE t.type LIKE 'job.%';
    IF wanted IS NULL THEN
        RETURN NULL;
    END IF;
    WITH services AS MATERIALIZED (
        SELECT s.kind, min(s.name) AS name FROM weir_services s GROUP BY s.kind
    ), events AS MATERIALIZED (
        SELECT o.job_id, o.holder, j.type, 'evt_' || replace(gen_random_uuid()::text, '-', '') AS id,
               json_strip_nulls(json_build_object(
                   'job_id', o.job_id,
                   'subject', subject_of(o.user_id),
                   'holder', o.holder, 'service', s.name, 'kind', j.kind, 'meter', o.event_type,
                   'reserved', o.reserved_amount,
                   'used', CASE WHEN j.type = 'job.completed' AND o.user_id IS NOT NULL AND o.period_start IS NOT NULL
                                THEN charge_of(o.reserved_amount, j.used) ELSE 0 END,
                   'attempts', j.attempt, 'error', j.error, 'reason', j.reason, 'request_id', j.request_id,
                   'submitted_at', utc_text(j.created_at), 'finished_at', utc_text(j.finalized_at)
               )) AS data
        FROM old_rows o
        CROSS JOIN LATERAL (
            SELECT k.kind, k.attempt, k.created_at, k.finalized_at,
                   CASE WHEN k.finalized_at IS NULL THEN NULL
                        WHEN k.state = 'completed' THEN 'job.completed'
                        WHEN k.state = 'cancelled' THEN 'job.cancelled'
                        ELSE 'job.failed' END AS type,
                   used_of(k.metadata) AS used,
                   CASE WHEN k.state = 'discarded'
                        THEN left(k.errors[array_upper(k.errors, 1)] ->> 'error', 1000) END AS error,
                   left(reason_of(k.metadata, k.errors), 1000) AS reason, k.metadata ->> 'weir:request_id' AS request_id
            -- By id alone. A condition on `finalized_at` allows the planner to use River's index of finished jobs. If
            -- statistics are from a time without finished jobs, it would scan all of them for each job.
            FROM river_job k WHERE k.id = o.job_id
            OFFSET 0
        ) j
        LEFT JOIN services s ON s.kind = j.kind
        WHERE j.type = ANY (wanted)
    )
    SELECT array_agg(d.webhook) AS webhooks, array_agg(d.holder) AS holders, array_agg(d.id) AS ids, array_agg(d.body) AS bodies
    INTO subscribed
    FROM (
        SELECT w.id AS webhook, e.holder, e.id,
               format('{"id":"%s","type":"%s","timestamp":"%s","data":%s}',
                      e.id, e.type, utc_text(clock_timestamp()), e.data) AS body
        FROM events e
        JOIN active_webhooks w ON e.type = ANY (w.events)
        ORDER BY e.job_id
    ) d;
    IF subscribed.webhooks IS NOT NULL THEN
        PERFORM deliver(subscribed.webhooks, subscribed.holders, subscribed.ids, subscribed.bodies);
    END IF;
    RETURN NULL;
END
$$;

-- functions/events/emit_override_thresholds.sql
-- Trigger of limit_overrides: an override with a lower limit may reach thresholds immediately.
-- Cost: as emit_thresholds().
CREATE OR REPLACE FUNCTION emit_override_thresholds() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM emit_thresholds(OLD.user_id, OLD.event_type);
    ELSE
        PERFORM emit_thresholds(NEW.user_id, NEW.event_type);
    END IF;
    RETURN NULL;
END
$$;

-- functions/events/emit_plan_change.sql
-- Trigger of user_subscriptions: emits plan.changed when the plan is written: immediately, or within about a second of
-- a scheduled change. It applies the rule of subscription_of() to both rows itself, because subscription_of() cannot
-- see the old row.
-- Cost: a scan of webhooks; with a subscriber as emit_thresholds() for each meter.
CREATE OR REPLACE FUNCTION emit_plan_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
DECLARE
    default_plan uuid;
    before uuid;
    after uuid;
BEGIN
    IF NOT EXISTS (SELECT FROM active_webhooks) THEN
        RETURN NULL;
    END IF;
    SELECT p.id INTO default_plan FROM subscription_plans p WHERE p.is_default;
    before := CASE WHEN TG_OP = 'UPDATE' AND OLD.status = 'active' THEN OLD.plan_id ELSE default_plan END;
    after := CASE WHEN NEW.status = 'active' THEN NEW.plan_id ELSE default_plan END;
    IF before IS NOT DISTINCT FROM after THEN
        RETURN NULL;
    END IF;
    PERFORM emit(ARRAY['plan.changed'], ARRAY[NEW.user_id], ARRAY[jsonb_build_object(
        'subject', subject_of(NEW.user_id), 'holder', NEW.user_id,
        'before', (SELECT p.tier FROM subscription_plans p WHERE p.id = before),
        'plan', (SELECT p.tier FROM subscription_plans p WHERE p.id = after))]);
    PERFORM emit_thresholds(NEW.user_id, b.event_type)
    FROM (SELECT DISTINCT k.event_type FROM quota_balances k WHERE k.user_id = NEW.user_id ORDER BY 1) b;
    RETURN NULL;
END
$$;

-- functions/events/emit_usage.sql
-- Trigger of quota_balances: emits the thresholds that new usage reaches.
-- Cost: a scan of webhooks; as emit_thresholds() with a subscriber.
CREATE OR REPLACE FUNCTION emit_usage() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
BEGIN
    -- check_threshold_subscribers() does not run before inserts.
    IF NEW.span IN ('month', 'day')
       AND (TG_OP = 'UPDATE' AND NEW.used > OLD.used
            OR TG_OP = 'INSERT' AND EXISTS (SELECT FROM active_webhooks w WHERE w.has_thresholds)) THEN
        PERFORM emit_thresholds(NEW.user_id, NEW.event_type);
    END IF;
    RETURN NULL;
END
$$;

-- functions/settlement/end_reservations_of_users.sql
-- Trigger of users: deletes a deleted user's reservations, which frees their slots.
-- Cost: one index range a user, and the counting triggers.
CREATE OR REPLACE FUNCTION end_reservations_of_users() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    DELETE FROM quota_reservations r USING old_users u WHERE r.user_id = u.id;
    RETURN NULL;
END
$$;

-- tables/admin_log.sql
CREATE TABLE admin_log (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    holder uuid,
    event_type usage_event_type,
    reason text,
    before jsonb,
    after jsonb,
    timeline int,
    PRIMARY KEY (id)
);

CREATE INDEX admin_log_timeline ON admin_log (timeline, id);

COMMENT ON TABLE admin_log IS
    'The changes by operators and billing. Rows are only added, never changed or deleted.';
COMMENT ON COLUMN admin_log.id IS
    'Increases in commit order, so a reader that resumes after an id misses no rows of the same timeline.';
COMMENT ON COLUMN admin_log.at IS
    'When it was changed.';
COMMENT ON COLUMN admin_log.actor IS
    'key:NAME over HTTP, shell:USER at the command line, weir for scheduled changes.';
COMMENT ON COLUMN admin_log.action IS
    'The change, such as plan, grant or cancel.';
COMMENT ON COLUMN admin_log.holder IS
    'The account that was changed; null when the change concerns no account.';
COMMENT ON COLUMN admin_log.event_type IS
    'The meter, for changes that concern one.';
COMMENT ON COLUMN admin_log.reason IS
    'The reason that the caller gave.';
COMMENT ON COLUMN admin_log.before IS
    'The values before the change.';
COMMENT ON COLUMN admin_log.after IS
    'The values after the change.';
COMMENT ON COLUMN admin_log.timeline IS
    'The server''s timeline, if it reports one. A new timeline may assign the ids of lost rows again.';

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON admin_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_log_changes();
CREATE TRIGGER note_timeline BEFORE INSERT ON admin_log
    FOR EACH ROW EXECUTE FUNCTION note_log_timeline();
CREATE TRIGGER serialize_log BEFORE INSERT ON admin_log
    FOR EACH STATEMENT EXECUTE FUNCTION serialize_log();

-- tables/admin_requests.sql
CREATE TABLE admin_requests (
    holder uuid NOT NULL,
    idempotency_key text NOT NULL,
    request jsonb NOT NULL,
    answer jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (holder, idempotency_key)
);

COMMENT ON TABLE admin_requests IS
    'Answers of /admin requests that had an Idempotency-Key, so that a repeated request changes nothing.';
COMMENT ON COLUMN admin_requests.holder IS
    'The user of the changed account.';
COMMENT ON COLUMN admin_requests.idempotency_key IS
    'The caller''s Idempotency-Key.';
COMMENT ON COLUMN admin_requests.request IS
    'The request. Another request with the same key is refused.';
COMMENT ON COLUMN admin_requests.answer IS
    'The response.';
COMMENT ON COLUMN admin_requests.created_at IS
    'When the request was first made.';

-- tables/catalogue_changes.sql
CREATE TABLE catalogue_changes (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    changed_at timestamptz NOT NULL DEFAULT now(),
    change text NOT NULL,
    PRIMARY KEY (id)
);

COMMENT ON TABLE catalogue_changes IS
    'Changes that `weir migrate` made to meters and plans.';
COMMENT ON COLUMN catalogue_changes.id IS
    'In the order of the changes.';
COMMENT ON COLUMN catalogue_changes.changed_at IS
    'When it was changed.';
COMMENT ON COLUMN catalogue_changes.change IS
    'The change in words.';

-- tables/deleted_users.sql
CREATE TABLE deleted_users (
    hash bytea NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (hash)
);

COMMENT ON TABLE deleted_users IS
    'Users that were deleted in the last 30 days. Later events of a payment provider do not create them again.';
COMMENT ON COLUMN deleted_users.hash IS
    'SHA-256 of the user''s id.';
COMMENT ON COLUMN deleted_users.deleted_at IS
    'When the user was deleted.';

-- tables/grants.sql
CREATE TABLE grants (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    amount bigint NOT NULL,
    reserved bigint NOT NULL DEFAULT 0,
    used bigint NOT NULL DEFAULT 0,
    expires_at timestamptz,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id),
    CONSTRAINT grants_amount_check CHECK (amount > 0),
    CONSTRAINT grants_check CHECK (((reserved)::numeric + (used)::numeric) <= (amount)::numeric),
    CONSTRAINT grants_expires_at_exists CHECK (isfinite(expires_at) AND (expires_at <= '9999-12-30 22:00:00.999999+00')),
    CONSTRAINT grants_reserved_check CHECK (reserved >= 0),
    CONSTRAINT grants_used_check CHECK (used >= 0)
);

COMMENT ON TABLE grants IS
    'Bought or given amounts. They are used after the monthly limit, those that expire first before others.';
COMMENT ON COLUMN grants.id IS
    'The grant''s id.';
COMMENT ON COLUMN grants.user_id IS
    'The user who has it.';
COMMENT ON COLUMN grants.event_type IS
    'The meter.';
COMMENT ON COLUMN grants.amount IS
    'The whole amount, in units of the meter.';
COMMENT ON COLUMN grants.reserved IS
    'Held by reservations.';
COMMENT ON COLUMN grants.used IS
    'Charged by finished jobs.';
COMMENT ON COLUMN grants.expires_at IS
    'Nothing can be drawn after this time; an existing draw stays until its reservation ends. Null: never.';
COMMENT ON COLUMN grants.reason IS
    'Why it was given, for operators.';
COMMENT ON COLUMN grants.created_at IS
    'When it was given.';

CREATE INDEX grants_left ON grants (user_id, event_type) WHERE used < amount;

-- tables/grant_draws.sql
CREATE TABLE grant_draws (
    job_id bigint NOT NULL,
    position smallint NOT NULL,
    grant_id uuid NOT NULL,
    amount bigint NOT NULL,
    charged bigint,
    PRIMARY KEY (job_id, "position"),
    CONSTRAINT grant_draws_amount_check CHECK (amount > 0),
    CONSTRAINT grant_draws_charged_check CHECK (charged > 0),
    FOREIGN KEY (grant_id) REFERENCES grants(id)
);

COMMENT ON TABLE grant_draws IS
    'The amounts that jobs drew on grants.';
COMMENT ON COLUMN grant_draws.job_id IS
    'The job that drew on the grant.';
COMMENT ON COLUMN grant_draws.position IS
    'The order in which the job drew on grants and is charged to them.';
COMMENT ON COLUMN grant_draws.grant_id IS
    'The grant.';
COMMENT ON COLUMN grant_draws.amount IS
    'The amount reserved of the grant.';
COMMENT ON COLUMN grant_draws.charged IS
    'The amount charged to the grant; null while the reservation exists.';

CREATE INDEX grant_draws_of_grant ON grant_draws (grant_id);

-- tables/job_outputs.sql
CREATE TABLE job_outputs (
    job_id bigint NOT NULL,
    output jsonb NOT NULL,
    PRIMARY KEY (job_id)
);

COMMENT ON TABLE job_outputs IS
    'Outputs of more than 4 KiB. Smaller ones are in river_job.metadata, member "output".';
COMMENT ON COLUMN job_outputs.job_id IS
    'The job that made the output.';
COMMENT ON COLUMN job_outputs.output IS
    'The output.';

-- tables/maintenance_lease.sql
CREATE TABLE maintenance_lease (
    one boolean NOT NULL DEFAULT true,
    process text NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at timestamptz DEFAULT clock_timestamp(),
    backend int,
    backend_start timestamptz,
    expires_at timestamptz,
    xid xid8,
    PRIMARY KEY (one),
    CONSTRAINT maintenance_lease_one_check CHECK (one)
) WITH (fillfactor = 50);

COMMENT ON TABLE maintenance_lease IS
    'The lease of the process that runs maintenance. One row.';
COMMENT ON COLUMN maintenance_lease.one IS
    'Always true: there is one row.';
COMMENT ON COLUMN maintenance_lease.process IS
    'Host name and process id.';
COMMENT ON COLUMN maintenance_lease.since IS
    'When this process took the lease.';
COMMENT ON COLUMN maintenance_lease.done_at IS
    'When it last renewed the lease; null when no process has done a round yet.';
COMMENT ON COLUMN maintenance_lease.backend IS
    'The process id, in PostgreSQL, of the session that holds the lease.';
COMMENT ON COLUMN maintenance_lease.backend_start IS
    'When that session started, since process ids are used again.';
COMMENT ON COLUMN maintenance_lease.expires_at IS
    'When the lease expires, unless it is renewed.';
COMMENT ON COLUMN maintenance_lease.xid IS
    'The oldest open transaction when the lease was last renewed.';

-- tables/meters.sql
CREATE TABLE meters (
    name usage_event_type NOT NULL,
    unit text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name)
);

COMMENT ON TABLE meters IS
    'The kinds of usage that are counted. `weir migrate` copies them from weir.toml.';
COMMENT ON COLUMN meters.name IS
    'The meter''s name.';
COMMENT ON COLUMN meters.unit IS
    'One unit, in the plural, such as analyses.';
COMMENT ON COLUMN meters.created_at IS
    'When it was added.';

-- tables/limit_overrides.sql
CREATE TABLE limit_overrides (
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    month bigint,
    day bigint,
    hour bigint,
    minute bigint,
    slots int,
    expires_at timestamptz,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, event_type),
    CONSTRAINT limit_overrides_day_check CHECK (day >= -1),
    CONSTRAINT limit_overrides_expires_at_exists CHECK (isfinite(expires_at) AND (expires_at <= '9999-12-30 22:00:00.999999+00')),
    CONSTRAINT limit_overrides_hour_check CHECK (hour >= -1),
    CONSTRAINT limit_overrides_minute_check CHECK (minute >= -1),
    CONSTRAINT limit_overrides_month_check CHECK (month >= -1),
    CONSTRAINT limit_overrides_slots_check CHECK (slots > 0),
    FOREIGN KEY (event_type) REFERENCES meters(name) ON DELETE CASCADE
);

COMMENT ON TABLE limit_overrides IS
    'Limits of one user that replace the plan''s. Null: the plan''s limit; -1: unlimited.';
COMMENT ON COLUMN limit_overrides.user_id IS
    'The user.';
COMMENT ON COLUMN limit_overrides.event_type IS
    'The meter.';
COMMENT ON COLUMN limit_overrides.month IS
    'The limit of a billing period; -1 is unlimited, null is the plan''s.';
COMMENT ON COLUMN limit_overrides.day IS
    'The limit of a day; -1 is unlimited, null is the plan''s.';
COMMENT ON COLUMN limit_overrides.hour IS
    'The limit of an hour; -1 is unlimited, null is the plan''s.';
COMMENT ON COLUMN limit_overrides.minute IS
    'The limit of a minute; -1 is unlimited, null is the plan''s.';
COMMENT ON COLUMN limit_overrides.slots IS
    'Slots instead of the plan''s.';
COMMENT ON COLUMN limit_overrides.expires_at IS
    'When the override ends; null: never.';
COMMENT ON COLUMN limit_overrides.changed_at IS
    'Maintenance promotes parked jobs of holders with a recently changed override.';

CREATE INDEX limit_overrides_changed ON limit_overrides (changed_at);

CREATE TRIGGER emit_override_thresholds AFTER INSERT OR DELETE OR UPDATE ON limit_overrides
    FOR EACH ROW EXECUTE FUNCTION emit_override_thresholds();

-- tables/outstanding_attempts.sql
CREATE TABLE outstanding_attempts (
    job_id bigint NOT NULL,
    claim text NOT NULL,
    patience interval NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deadline_at timestamptz NOT NULL,
    PRIMARY KEY (job_id),
    CONSTRAINT outstanding_attempts_patience_check CHECK (patience > interval '0')
) WITH (fillfactor = 50);

COMMENT ON TABLE outstanding_attempts IS
    'Attempts that answer later. The job is in River''s state pending, so no River client claims, rescues or ends it. The attempt outlives the process that started it.';
COMMENT ON COLUMN outstanding_attempts.job_id IS
    'The job that waits for its answer.';
COMMENT ON COLUMN outstanding_attempts.claim IS
    'The attempt, as claim_of() returns it.';
COMMENT ON COLUMN outstanding_attempts.patience IS
    'The maximum time between two reports of the handler.';
COMMENT ON COLUMN outstanding_attempts.began_at IS
    'When the handler announced a later answer.';
COMMENT ON COLUMN outstanding_attempts.deadline_at IS
    'When the attempt is taken over, unless the handler reports before.';

CREATE INDEX outstanding_attempts_deadline ON outstanding_attempts (deadline_at);

-- tables/periodic_jobs.sql
CREATE TABLE periodic_jobs (
    id text NOT NULL,
    enqueued_until timestamptz NOT NULL,
    PRIMARY KEY (id)
) WITH (fillfactor = 50);

COMMENT ON TABLE periodic_jobs IS
    'The last tick of each periodic job. The process that advances the row enqueues the tick, so each tick is enqueued once.';
COMMENT ON COLUMN periodic_jobs.id IS
    'The name in the services file.';
COMMENT ON COLUMN periodic_jobs.enqueued_until IS
    'The last tick that was enqueued, or the time from which the first tick is due.';

-- tables/plan_changes.sql
CREATE TABLE plan_changes (
    event_id text NOT NULL,
    user_id uuid NOT NULL,
    plan text NOT NULL,
    occurred_at timestamptz NOT NULL,
    effective text NOT NULL,
    applied boolean NOT NULL,
    reason text,
    subscription text,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (event_id),
    CONSTRAINT plan_changes_check CHECK (applied = (reason IS NULL)),
    CONSTRAINT plan_changes_effective_check CHECK (effective IN ('now', 'period_end')),
    CONSTRAINT plan_changes_event_id_check CHECK (octet_length(event_id) BETWEEN 1 AND 255),
    CONSTRAINT plan_changes_subscription_check CHECK (octet_length(subscription) BETWEEN 1 AND 255)
);

COMMENT ON TABLE plan_changes IS
    'Plan changes that a payment provider reported, by its event ids. A repeated event changes nothing.';
COMMENT ON COLUMN plan_changes.event_id IS
    'The provider''s id of the event.';
COMMENT ON COLUMN plan_changes.user_id IS
    'The user.';
COMMENT ON COLUMN plan_changes.plan IS
    'The plan that the event named.';
COMMENT ON COLUMN plan_changes.occurred_at IS
    'When the change happened at the provider; older events than the last applied one are not applied.';
COMMENT ON COLUMN plan_changes.effective IS
    'now, or period_end.';
COMMENT ON COLUMN plan_changes.applied IS
    'Whether the event changed the plan.';
COMMENT ON COLUMN plan_changes.reason IS
    'Why it was not applied: older than another event, or the end of a superseded subscription.';
COMMENT ON COLUMN plan_changes.subscription IS
    'The provider''s id of the subscription, if the event named one.';
COMMENT ON COLUMN plan_changes.recorded_at IS
    'When the change was written.';

CREATE INDEX plan_changes_of_user ON plan_changes (user_id, occurred_at DESC);

-- tables/processes.sql
CREATE TABLE processes (
    client_id text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    beat_at timestamptz NOT NULL DEFAULT now(),
    pools jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (client_id)
) WITH (fillfactor = 70);

COMMENT ON TABLE processes IS
    'The running processes that work jobs: Weir''s, and workers in other languages that call weir_heartbeat().';
COMMENT ON COLUMN processes.client_id IS
    'The River client id, as in river_job.attempted_by. Only those of Weir''s processes start with weir_.';
COMMENT ON COLUMN processes.started_at IS
    'When the process started.';
COMMENT ON COLUMN processes.beat_at IS
    'The last heartbeat. Other processes take over the jobs of a process without one.';
COMMENT ON COLUMN processes.pools IS
    'The number of workers by queue.';

-- tables/quota_balances.sql
CREATE TABLE quota_balances (
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    period_start timestamptz NOT NULL,
    used bigint NOT NULL DEFAULT 0,
    reserved bigint NOT NULL DEFAULT 0,
    granted_limit bigint NOT NULL DEFAULT 0,
    span text NOT NULL DEFAULT 'month',
    from_grants bigint NOT NULL DEFAULT 0,
    changes bigint NOT NULL DEFAULT 0,
    generation bigint GENERATED ALWAYS AS (changes / 64) STORED,
    PRIMARY KEY (user_id, event_type, span, period_start),
    CONSTRAINT quota_balances_reserved_check CHECK (reserved >= 0),
    CONSTRAINT quota_balances_span_check CHECK (span IN ('month', 'day', 'hour', 'minute')),
    CONSTRAINT quota_balances_used_check CHECK (used >= 0)
)
-- See holders.
WITH (fillfactor = 30);

COMMENT ON TABLE quota_balances IS
    'Used and reserved amounts per user, meter and window, so that the cost of a reservation does not depend on the history.';
COMMENT ON COLUMN quota_balances.user_id IS
    'The user.';
COMMENT ON COLUMN quota_balances.event_type IS
    'The meter.';
COMMENT ON COLUMN quota_balances.period_start IS
    'The start of the window.';
COMMENT ON COLUMN quota_balances.used IS
    'Charged in this window.';
COMMENT ON COLUMN quota_balances.reserved IS
    'Held by unfinished jobs in this window.';
COMMENT ON COLUMN quota_balances.granted_limit IS
    'The limit when a reservation was last accepted; 9223372036854775807 is unlimited.';
COMMENT ON COLUMN quota_balances.span IS
    'The kind of window that starts at period_start.';
COMMENT ON COLUMN quota_balances.from_grants IS
    'The part of used and reserved that grants pay for; months only.';
COMMENT ON COLUMN quota_balances.changes IS
    'The number of changes of the amounts.';
COMMENT ON COLUMN quota_balances.generation IS
    'Orders the row''s versions in quota_balances_newest.';

-- See holders_newest.
CREATE INDEX quota_balances_newest ON quota_balances (user_id, event_type, span, period_start, generation);
CREATE INDEX quota_balances_over ON quota_balances (period_start) WHERE span <> 'month';

CREATE TRIGGER check_threshold_subscribers BEFORE UPDATE OF used ON quota_balances
    FOR EACH STATEMENT EXECUTE FUNCTION check_threshold_subscribers();
CREATE TRIGGER emit_first_usage AFTER INSERT ON quota_balances
    FOR EACH ROW WHEN (NEW.used > 0 AND (NEW.span IN ('month', 'day')))
    EXECUTE FUNCTION emit_usage();
CREATE TRIGGER emit_usage AFTER UPDATE OF used ON quota_balances
    FOR EACH ROW WHEN (current_setting('weir.thresholds', true) = 'thresholds')
    EXECUTE FUNCTION emit_usage();

-- tables/quota_reservations.sql
CREATE TABLE quota_reservations (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    user_id uuid,
    event_type usage_event_type NOT NULL,
    reserved_amount bigint NOT NULL,
    job_id bigint NOT NULL,
    expires_at timestamptz NOT NULL DEFAULT (now() + interval '1 hour'),
    created_at timestamptz NOT NULL DEFAULT now(),
    holder uuid NOT NULL,
    period_start timestamptz,
    admitted_at timestamptz DEFAULT now(),
    parked_at timestamptz,
    windows smallint NOT NULL DEFAULT 0,
    from_grants bigint NOT NULL DEFAULT 0,
    due_at timestamptz,
    progress jsonb,
    overage bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id),
    CONSTRAINT quota_reservations_check CHECK ((admitted_at IS NULL) OR (parked_at IS NULL)),
    CONSTRAINT quota_reservations_due CHECK ((due_at IS NULL) OR ((admitted_at IS NULL) AND (parked_at IS NULL))),
    CONSTRAINT quota_reservations_reserved_amount_check CHECK (reserved_amount >= 0)
);

COMMENT ON TABLE quota_reservations IS
    'One row per unfinished job: it holds quota (reserved_amount), and a slot while admitted_at is set. While parked_at is set, the job waits for a slot. With neither, the job is scheduled or between two attempts. The row is deleted when the job ends.';
COMMENT ON COLUMN quota_reservations.id IS
    'The reservation''s id.';
COMMENT ON COLUMN quota_reservations.user_id IS
    'Null for an anonymous job, which holds a slot but no quota.';
COMMENT ON COLUMN quota_reservations.event_type IS
    'The meter.';
COMMENT ON COLUMN quota_reservations.reserved_amount IS
    'The reserved quota, in the meter''s unit.';
COMMENT ON COLUMN quota_reservations.job_id IS
    'The job in river_job.';
COMMENT ON COLUMN quota_reservations.expires_at IS
    'Renewed while the job lives. Maintenance removes an expired reservation if its job is finished or gone.';
COMMENT ON COLUMN quota_reservations.created_at IS
    'The moment that decided in which windows it counts.';
COMMENT ON COLUMN quota_reservations.holder IS
    'The account that it counts against.';
COMMENT ON COLUMN quota_reservations.period_start IS
    'The billing period that the job is charged to, whenever it ends.';
COMMENT ON COLUMN quota_reservations.admitted_at IS
    'Since when it holds a slot; null without one.';
COMMENT ON COLUMN quota_reservations.parked_at IS
    'Since when it waits for a slot; null when it does not.';
COMMENT ON COLUMN quota_reservations.windows IS
    'The windows other than the month that the amount counts in, around created_at: 1 day, 2 hour, 4 minute.';
COMMENT ON COLUMN quota_reservations.from_grants IS
    'The part of reserved_amount that was drawn on grants.';
COMMENT ON COLUMN quota_reservations.due_at IS
    'When the job requests a slot; null when it has requested one, or will with its next attempt.';
COMMENT ON COLUMN quota_reservations.progress IS
    'The last progress of the attempt: attempt, fraction, message.';
COMMENT ON COLUMN quota_reservations.overage IS
    'The part of reserved_amount that exceeded both the month''s limit and the grants.';

CREATE INDEX quota_reservations_due_at ON quota_reservations (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX quota_reservations_parked ON quota_reservations (holder, event_type, job_id) WHERE parked_at IS NOT NULL;
CREATE INDEX quota_reservations_scheduled ON quota_reservations (holder, event_type) WHERE due_at IS NOT NULL;

CREATE TRIGGER count_delete AFTER DELETE ON quota_reservations REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT WHEN (current_setting('weir.counters', true) IS DISTINCT FROM 'kept')
    EXECUTE FUNCTION count_reservations();
CREATE TRIGGER count_insert AFTER INSERT ON quota_reservations REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT WHEN (current_setting('weir.counters', true) IS DISTINCT FROM 'kept')
    EXECUTE FUNCTION count_reservations();
CREATE TRIGGER count_update AFTER UPDATE ON quota_reservations REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT WHEN (current_setting('weir.counters', true) IS DISTINCT FROM 'kept')
    EXECUTE FUNCTION count_reservations();
CREATE TRIGGER fill BEFORE INSERT ON quota_reservations
    FOR EACH ROW WHEN (NEW.holder IS NULL OR NEW.period_start IS NULL AND NEW.user_id IS NOT NULL)
    EXECUTE FUNCTION fill_quota_row();
CREATE TRIGGER emit_job_ends AFTER DELETE ON quota_reservations REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION emit_job_ends();

-- tables/quota_thresholds.sql
CREATE TABLE quota_thresholds (
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    span text NOT NULL,
    period_start timestamptz NOT NULL,
    percent smallint NOT NULL,
    used bigint NOT NULL,
    most bigint NOT NULL,
    ends_at timestamptz NOT NULL,
    reached_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, event_type, span, period_start, percent)
);

COMMENT ON TABLE quota_thresholds IS
    'Thresholds that were reached in windows that have not ended. Each is emitted once.';
COMMENT ON COLUMN quota_thresholds.user_id IS
    'The user.';
COMMENT ON COLUMN quota_thresholds.event_type IS
    'The meter.';
COMMENT ON COLUMN quota_thresholds.span IS
    'The kind of window: month or day.';
COMMENT ON COLUMN quota_thresholds.period_start IS
    'The start of the window.';
COMMENT ON COLUMN quota_thresholds.percent IS
    'The threshold, in percent of the limit.';
COMMENT ON COLUMN quota_thresholds.used IS
    'The usage when it was reached.';
COMMENT ON COLUMN quota_thresholds.most IS
    'The limit when it was reached.';
COMMENT ON COLUMN quota_thresholds.ends_at IS
    'The end of the window: then the row is deleted and quota.renewed is emitted.';
COMMENT ON COLUMN quota_thresholds.reached_at IS
    'When the threshold was reached.';

CREATE INDEX quota_thresholds_ending ON quota_thresholds (ends_at);

-- tables/service_keys.sql
CREATE TABLE service_keys (
    name text NOT NULL,
    secret_hash bytea NOT NULL,
    scopes text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    PRIMARY KEY (name),
    UNIQUE (secret_hash),
    CONSTRAINT service_keys_name_check CHECK (octet_length(name) BETWEEN 1 AND 100),
    CONSTRAINT service_keys_scopes_check CHECK ((scopes <@ ARRAY['submit', 'read', 'admin']) AND (cardinality(scopes) > 0))
);

COMMENT ON TABLE service_keys IS
    'The keys of backends. A key has 256 random bits, so a plain hash is enough: salts and slow hashes are needed only for passwords that people choose.';
COMMENT ON COLUMN service_keys.name IS
    'The key''s name.';
COMMENT ON COLUMN service_keys.secret_hash IS
    'SHA-256 of the key. The key itself is not stored.';
COMMENT ON COLUMN service_keys.scopes IS
    'The operations that the key allows: submit, read, admin.';
COMMENT ON COLUMN service_keys.created_at IS
    'When it was created.';
COMMENT ON COLUMN service_keys.expires_at IS
    'When it stops being accepted; null is never.';
COMMENT ON COLUMN service_keys.revoked_at IS
    'When it was revoked; null while it is accepted.';
COMMENT ON COLUMN service_keys.last_used_at IS
    'To the minute.';

-- tables/specview_cache.sql
CREATE TABLE specview_cache (
    holder uuid NOT NULL,
    language text NOT NULL,
    test_key bytea NOT NULL,
    rendered text NOT NULL,
    job_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (holder, language, test_key)
);

COMMENT ON TABLE specview_cache IS
    'Rendered tests of the sample service, so that the same test in the same language is charged once.';
COMMENT ON COLUMN specview_cache.holder IS
    'The account of the job that rendered it.';
COMMENT ON COLUMN specview_cache.language IS
    'The language of the rendering.';
COMMENT ON COLUMN specview_cache.test_key IS
    'The hash of the test case.';
COMMENT ON COLUMN specview_cache.rendered IS
    'The rendering.';
COMMENT ON COLUMN specview_cache.job_id IS
    'The job that rendered it.';
COMMENT ON COLUMN specview_cache.created_at IS
    'When it was rendered.';

CREATE INDEX specview_cache_age ON specview_cache (created_at);

-- tables/submissions.sql
CREATE TABLE submissions (
    job_id bigint NOT NULL,
    holder uuid NOT NULL,
    user_id uuid,
    event_type usage_event_type NOT NULL,
    reserved_amount bigint NOT NULL,
    idempotency_key text,
    request_hash bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id)
);

COMMENT ON TABLE submissions IS
    'Accepted submissions: the holder of each job, and the job of each Idempotency-Key.';
COMMENT ON COLUMN submissions.job_id IS
    'The job in river_job.';
COMMENT ON COLUMN submissions.holder IS
    'The account that submitted it.';
COMMENT ON COLUMN submissions.user_id IS
    'The user; null for a client address.';
COMMENT ON COLUMN submissions.event_type IS
    'The meter.';
COMMENT ON COLUMN submissions.reserved_amount IS
    'The amount that it reserved, with later extensions.';
COMMENT ON COLUMN submissions.idempotency_key IS
    'The caller''s key; null without one, or after 24 hours.';
COMMENT ON COLUMN submissions.request_hash IS
    'Shows whether a repeated key came with the same request.';
COMMENT ON COLUMN submissions.created_at IS
    'When it was submitted.';

CREATE INDEX submissions_of_holder ON submissions (holder, job_id DESC);
CREATE UNIQUE INDEX submissions_idempotency ON submissions (holder, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- tables/subscription_plans.sql
CREATE TABLE subscription_plans (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    tier plan_tier NOT NULL,
    specview_monthly_limit bigint,
    analysis_monthly_limit bigint,
    retention_days int,
    monthly_price int,
    created_at timestamptz NOT NULL DEFAULT now(),
    lane text NOT NULL DEFAULT 'default',
    is_default boolean NOT NULL DEFAULT false,
    max_waiting int,
    PRIMARY KEY (id),
    UNIQUE (tier),
    CONSTRAINT subscription_plans_analysis_monthly_limit_check CHECK (analysis_monthly_limit >= 0),
    CONSTRAINT subscription_plans_lane_check CHECK (lane IN ('priority', 'default')),
    CONSTRAINT subscription_plans_max_waiting_check CHECK (max_waiting > 0),
    CONSTRAINT subscription_plans_monthly_price_check CHECK (monthly_price >= 0),
    CONSTRAINT subscription_plans_retention_days_check CHECK (retention_days > 0),
    CONSTRAINT subscription_plans_specview_monthly_limit_check CHECK (specview_monthly_limit >= 0)
);

COMMENT ON TABLE subscription_plans IS
    'The plans.';
COMMENT ON COLUMN subscription_plans.id IS
    'The plan''s id.';
COMMENT ON COLUMN subscription_plans.tier IS
    'The name of the plan.';
COMMENT ON COLUMN subscription_plans.specview_monthly_limit IS
    'Test cases a month; null is unlimited. Follows plan_limits.month.';
COMMENT ON COLUMN subscription_plans.analysis_monthly_limit IS
    'Analyses a month; null is unlimited. Follows plan_limits.month.';
COMMENT ON COLUMN subscription_plans.retention_days IS
    'The retention of results; null keeps them indefinitely.';
COMMENT ON COLUMN subscription_plans.monthly_price IS
    'US dollars; null is by contract.';
COMMENT ON COLUMN subscription_plans.created_at IS
    'When it was added.';
COMMENT ON COLUMN subscription_plans.lane IS
    'Which lane the jobs of the plan use.';
COMMENT ON COLUMN subscription_plans.is_default IS
    'The plan of holders without an active subscription.';
COMMENT ON COLUMN subscription_plans.max_waiting IS
    'The maximum number of a holder''s waiting jobs per meter: for a slot, their start time or their next attempt; null is unlimited.';

CREATE UNIQUE INDEX subscription_plans_default ON subscription_plans (is_default) WHERE is_default;

CREATE TRIGGER follow_monthly_limits AFTER INSERT OR UPDATE ON subscription_plans
    FOR EACH ROW EXECUTE FUNCTION follow_monthly_limits();

-- tables/plan_limits.sql
CREATE TABLE plan_limits (
    plan_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    month bigint,
    day bigint,
    hour bigint,
    minute bigint,
    slots int NOT NULL,
    counted smallint NOT NULL DEFAULT 0,
    month_ceiling bigint,
    day_ceiling bigint,
    hour_ceiling bigint,
    minute_ceiling bigint,
    PRIMARY KEY (plan_id, event_type),
    CONSTRAINT plan_limits_day_ceiling_check CHECK (day_ceiling >= 0),
    CONSTRAINT plan_limits_day_check CHECK (day >= 0),
    CONSTRAINT plan_limits_hour_ceiling_check CHECK (hour_ceiling >= 0),
    CONSTRAINT plan_limits_hour_check CHECK (hour >= 0),
    CONSTRAINT plan_limits_minute_ceiling_check CHECK (minute_ceiling >= 0),
    CONSTRAINT plan_limits_minute_check CHECK (minute >= 0),
    CONSTRAINT plan_limits_month_ceiling_check CHECK (month_ceiling >= 0),
    CONSTRAINT plan_limits_month_check CHECK (month >= 0),
    CONSTRAINT plan_limits_slots_check CHECK (slots > 0),
    FOREIGN KEY (event_type) REFERENCES meters(name) ON DELETE CASCADE,
    FOREIGN KEY (plan_id) REFERENCES subscription_plans(id) ON DELETE CASCADE
);

COMMENT ON TABLE plan_limits IS
    'The amounts of a meter that a plan allows per window. Null is unlimited. A month starts on the subscription''s anchor day; days, hours and minutes are UTC''s.';
COMMENT ON COLUMN plan_limits.plan_id IS
    'The plan.';
COMMENT ON COLUMN plan_limits.event_type IS
    'The meter.';
COMMENT ON COLUMN plan_limits.month IS
    'The limit of a billing period; null is unlimited.';
COMMENT ON COLUMN plan_limits.day IS
    'The limit of a day; null is unlimited.';
COMMENT ON COLUMN plan_limits.hour IS
    'The limit of an hour; null is unlimited.';
COMMENT ON COLUMN plan_limits.minute IS
    'The limit of a minute; null is unlimited.';
COMMENT ON COLUMN plan_limits.slots IS
    'The maximum number of running jobs per holder.';
COMMENT ON COLUMN plan_limits.counted IS
    'A bit set of the shorter windows in which any plan limits the meter: 1 day, 2 hour, 4 minute.';
COMMENT ON COLUMN plan_limits.month_ceiling IS
    'The amount up to which usage over the limit is accepted; null: the limit is hard.';
COMMENT ON COLUMN plan_limits.day_ceiling IS
    'The ceiling of a soft daily limit.';
COMMENT ON COLUMN plan_limits.hour_ceiling IS
    'The ceiling of a soft hourly limit.';
COMMENT ON COLUMN plan_limits.minute_ceiling IS
    'The ceiling of a soft limit per minute.';

CREATE TRIGGER count_limited_windows AFTER INSERT OR DELETE OR UPDATE OF day, hour, minute ON plan_limits
    FOR EACH STATEMENT EXECUTE FUNCTION count_limited_windows();
CREATE TRIGGER count_limited_windows_before BEFORE INSERT OR DELETE OR UPDATE OF day, hour, minute ON plan_limits
    FOR EACH STATEMENT EXECUTE FUNCTION count_limited_windows();
CREATE TRIGGER write_monthly_limit AFTER INSERT OR UPDATE OF month ON plan_limits
    FOR EACH ROW EXECUTE FUNCTION write_monthly_limit();

-- tables/usage_events.sql
CREATE TABLE usage_events (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    analysis_id uuid,
    document_id uuid,
    quota_amount bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    job_id bigint,
    period_start timestamptz NOT NULL,
    windows smallint NOT NULL DEFAULT 0,
    reserved_at timestamptz,
    xid xid8 DEFAULT pg_current_xact_id(),
    reason text,
    from_grants bigint NOT NULL DEFAULT 0,
    overage bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (id),
    UNIQUE (job_id),
    CONSTRAINT usage_events_quota_amount_check CHECK ((quota_amount >= 0) OR (reason IS NOT NULL))
)
-- PostgreSQL's default waits until a fifth of the rows are dead: several archived months.
WITH (autovacuum_vacuum_scale_factor = 0.02);

COMMENT ON TABLE usage_events IS
    'The charges, one row per completed job or adjustment.';
COMMENT ON COLUMN usage_events.id IS
    'The event''s id, which stays the same whenever it is read.';
COMMENT ON COLUMN usage_events.user_id IS
    'The user.';
COMMENT ON COLUMN usage_events.event_type IS
    'The meter.';
COMMENT ON COLUMN usage_events.analysis_id IS
    'A column of ADR-21; Weir leaves it null.';
COMMENT ON COLUMN usage_events.document_id IS
    'A column of ADR-21; Weir leaves it null.';
COMMENT ON COLUMN usage_events.quota_amount IS
    'The charge, in the meter''s unit; an adjustment may be negative.';
COMMENT ON COLUMN usage_events.created_at IS
    'When it was charged.';
COMMENT ON COLUMN usage_events.job_id IS
    'Unique: a job is charged once, even if its workers crash. Null for an adjustment.';
COMMENT ON COLUMN usage_events.period_start IS
    'The start of the billing period that it counts in.';
COMMENT ON COLUMN usage_events.windows IS
    'The windows other than the month that the amount counts in, around reserved_at: 1 day, 2 hour, 4 minute.';
COMMENT ON COLUMN usage_events.reserved_at IS
    'When it was reserved, where a window needs it.';
COMMENT ON COLUMN usage_events.xid IS
    'The transaction that wrote the row: the order of the usage feed. Null for rows that came from another server, or were imported and are billed.';
COMMENT ON COLUMN usage_events.reason IS
    'The reason of an adjustment. An adjustment may be negative. `imported`: the event comes from another product.';
COMMENT ON COLUMN usage_events.from_grants IS
    'The part of quota_amount that was charged to grants and not to the plan.';
COMMENT ON COLUMN usage_events.overage IS
    'The part of quota_amount that was overage when the job was accepted.';

CREATE INDEX usage_events_before ON usage_events (id) WHERE xid IS NULL;
CREATE INDEX usage_events_feed ON usage_events (xid) WHERE xid IS NOT NULL;
CREATE INDEX usage_events_sum ON usage_events (user_id, event_type, created_at);

CREATE TRIGGER count_delete AFTER DELETE ON usage_events REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT WHEN (current_setting('weir.counters', true) IS DISTINCT FROM 'kept')
    EXECUTE FUNCTION count_usage_events();
CREATE TRIGGER count_insert AFTER INSERT ON usage_events REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT WHEN (current_setting('weir.counters', true) IS DISTINCT FROM 'kept')
    EXECUTE FUNCTION count_usage_events();
CREATE TRIGGER count_update AFTER UPDATE ON usage_events REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT WHEN (current_setting('weir.counters', true) IS DISTINCT FROM 'kept')
    EXECUTE FUNCTION count_usage_events();
CREATE TRIGGER fill BEFORE INSERT ON usage_events
    FOR EACH ROW WHEN (NEW.period_start IS NULL)
    EXECUTE FUNCTION fill_quota_row();

-- tables/users.sql
CREATE TABLE users (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT now(),
    subject text COLLATE "C",
    PRIMARY KEY (id),
    UNIQUE (subject),
    -- Excludes ids of client addresses: see is_address_id().
    CONSTRAINT users_kind CHECK (get_byte(uuid_send(id), 8) < 224),
    CONSTRAINT users_subject_check CHECK (octet_length(subject) BETWEEN 1 AND 255)
);

COMMENT ON TABLE users IS
    'The users that Weir has seen.';
COMMENT ON COLUMN users.id IS
    'The user''s id: the subject, or a UUID made from it.';
COMMENT ON COLUMN users.created_at IS
    'When the user was first seen.';
COMMENT ON COLUMN users.subject IS
    'The text that names the user in tokens and job arguments; null when that is the id. The id is derived from it.';

CREATE TRIGGER end_reservations AFTER DELETE ON users REFERENCING OLD TABLE AS old_users
    FOR EACH STATEMENT EXECUTE FUNCTION end_reservations_of_users();

-- tables/finished_jobs.sql
CREATE TABLE finished_jobs (
    job_id bigint NOT NULL,
    user_id uuid NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    queue text NOT NULL,
    attempt smallint NOT NULL,
    max_attempts smallint NOT NULL,
    created_at timestamptz NOT NULL,
    attempted_at timestamptz,
    finalized_at timestamptz NOT NULL,
    error text,
    output jsonb,
    review_at timestamptz NOT NULL,
    PRIMARY KEY (job_id),
    CONSTRAINT finished_jobs_state_check CHECK (state IN ('completed', 'cancelled', 'discarded')),
    FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

COMMENT ON TABLE finished_jobs IS
    'Finished jobs of users, for as long as their plans keep results. River deletes its own rows earlier.';
COMMENT ON COLUMN finished_jobs.job_id IS
    'The job''s id in river_job.';
COMMENT ON COLUMN finished_jobs.user_id IS
    'The job''s user.';
COMMENT ON COLUMN finished_jobs.kind IS
    'River''s kind of the job.';
COMMENT ON COLUMN finished_jobs.state IS
    'The state in which it ended: completed, cancelled or discarded.';
COMMENT ON COLUMN finished_jobs.queue IS
    'The queue of its last attempt.';
COMMENT ON COLUMN finished_jobs.attempt IS
    'The number of attempts.';
COMMENT ON COLUMN finished_jobs.max_attempts IS
    'The maximum number of attempts.';
COMMENT ON COLUMN finished_jobs.created_at IS
    'When it was submitted.';
COMMENT ON COLUMN finished_jobs.attempted_at IS
    'When its last attempt started.';
COMMENT ON COLUMN finished_jobs.finalized_at IS
    'When it ended.';
COMMENT ON COLUMN finished_jobs.error IS
    'The error that the owner sees; null for a completed job.';
COMMENT ON COLUMN finished_jobs.output IS
    'The output; null also when it is in job_outputs.';
COMMENT ON COLUMN finished_jobs.review_at IS
    'When to delete the job, unless the plan at that time keeps it longer. At most 30 days after the last review.';

CREATE INDEX finished_jobs_review ON finished_jobs (review_at);
CREATE INDEX finished_jobs_user ON finished_jobs (user_id);

-- tables/holders.sql
CREATE TABLE holders (
    holder uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    user_id uuid,
    slots_in_use int NOT NULL DEFAULT 0,
    parked int NOT NULL DEFAULT 0,
    granted_slots int NOT NULL DEFAULT 0,
    has_grants boolean NOT NULL DEFAULT false,
    parked_from bigint NOT NULL DEFAULT 0,
    changes bigint NOT NULL DEFAULT 0,
    generation bigint GENERATED ALWAYS AS (changes / 64) STORED,
    PRIMARY KEY (holder, event_type),
    -- The rule of is_address_id(). A table cannot call it, because functions are created after tables.
    CONSTRAINT holders_kind CHECK ((user_id IS NULL) = (get_byte(uuid_send(holder), 8) >= 224)),
    CONSTRAINT holders_parked_check CHECK (parked >= 0),
    CONSTRAINT holders_slots_in_use_check CHECK (slots_in_use >= 0),
    FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
)
-- While a session holds an old snapshot, a row moves to another page when its page is full. Each move adds an entry to
-- each index, and the primary key compares it with all earlier ones of the row. The fewer rows share a page, the more
-- versions of each fit, and the fewer changes are moves.
WITH (fillfactor = 30);

COMMENT ON TABLE holders IS
    'The accounts that jobs count against: a user, or an anonymous client address. One row per meter. Every reservation and settlement locks this row first, so its counters need no separate lock.';
COMMENT ON COLUMN holders.holder IS
    'The user''s id, or a UUID derived from the client address.';
COMMENT ON COLUMN holders.event_type IS
    'The meter.';
COMMENT ON COLUMN holders.user_id IS
    'The user; null for a client address.';
COMMENT ON COLUMN holders.slots_in_use IS
    'The number of jobs with a slot.';
COMMENT ON COLUMN holders.parked IS
    'The number of jobs that wait for a slot.';
COMMENT ON COLUMN holders.granted_slots IS
    'The slot limit when a slot was last taken; 2147483647 is unlimited.';
COMMENT ON COLUMN holders.has_grants IS
    'Whether the user ever had a grant of this meter. If not, grants are not looked up.';
COMMENT ON COLUMN holders.parked_from IS
    'No parked job has a smaller id. Promotion starts here, and not at the entries of jobs that it promoted earlier, which stay while a session holds an old snapshot.';
COMMENT ON COLUMN holders.changes IS
    'The number of changes of the counters.';
COMMENT ON COLUMN holders.generation IS
    'Orders the row''s versions in holders_newest.';

-- While a session holds an old snapshot, every version of a row stays, and a look-up walks over them from the oldest to
-- the newest. This index puts the newest generation last, so a backward scan finds the live version within 64 steps.
-- The planner may prefer the primary key and a sort, so statements that need the index run with enable_sort off.
CREATE INDEX holders_newest ON holders (holder, event_type, generation);

CREATE TRIGGER remember_grants BEFORE INSERT ON holders
    FOR EACH ROW WHEN (NEW.user_id IS NOT NULL AND NOT NEW.has_grants)
    EXECUTE FUNCTION remember_grants();

-- tables/user_subscriptions.sql
CREATE TABLE user_subscriptions (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    user_id uuid NOT NULL,
    plan_id uuid NOT NULL,
    status subscription_status NOT NULL DEFAULT 'active',
    current_period_start timestamptz NOT NULL DEFAULT now(),
    current_period_end timestamptz NOT NULL DEFAULT (now() + interval '1 month'),
    canceled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    next_plan_id uuid,
    next_plan_at timestamptz,
    PRIMARY KEY (id),
    CONSTRAINT user_subscriptions_check CHECK ((status = 'canceled') = (canceled_at IS NOT NULL)),
    CONSTRAINT user_subscriptions_check1 CHECK ((next_plan_id IS NULL) = (next_plan_at IS NULL)),
    CONSTRAINT user_subscriptions_next_plan_at_exists CHECK (isfinite(next_plan_at) AND (next_plan_at <= '9999-12-30 22:00:00.999999+00')),
    FOREIGN KEY (next_plan_id) REFERENCES subscription_plans(id) ON DELETE RESTRICT,
    FOREIGN KEY (plan_id) REFERENCES subscription_plans(id) ON DELETE RESTRICT,
    FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

COMMENT ON TABLE user_subscriptions IS
    'The plan of each user. At most one subscription of a user is active.';
COMMENT ON COLUMN user_subscriptions.id IS
    'The subscription''s id.';
COMMENT ON COLUMN user_subscriptions.user_id IS
    'The user.';
COMMENT ON COLUMN user_subscriptions.plan_id IS
    'The plan.';
COMMENT ON COLUMN user_subscriptions.status IS
    'active, canceled or expired. A user has at most one active subscription.';
COMMENT ON COLUMN user_subscriptions.current_period_start IS
    'The anchor of the billing periods: they start on its day of the month. It does not move from period to period.';
COMMENT ON COLUMN user_subscriptions.current_period_end IS
    'The end of the billing period that the anchor starts.';
COMMENT ON COLUMN user_subscriptions.canceled_at IS
    'When it was canceled.';
COMMENT ON COLUMN user_subscriptions.created_at IS
    'When it was added.';
COMMENT ON COLUMN user_subscriptions.updated_at IS
    'Maintenance promotes parked jobs of users with a recently changed plan.';
COMMENT ON COLUMN user_subscriptions.next_plan_id IS
    'The plan from next_plan_at on. Maintenance copies it to plan_id later.';
COMMENT ON COLUMN user_subscriptions.next_plan_at IS
    'When the scheduled plan takes effect.';

CREATE INDEX user_subscriptions_changed ON user_subscriptions (updated_at);
CREATE INDEX user_subscriptions_next ON user_subscriptions (next_plan_at) WHERE next_plan_at IS NOT NULL;
CREATE UNIQUE INDEX user_subscriptions_active ON user_subscriptions (user_id) WHERE status = 'active';

CREATE TRIGGER emit_plan_change AFTER INSERT OR UPDATE OF plan_id, status ON user_subscriptions
    FOR EACH ROW EXECUTE FUNCTION emit_plan_change();
CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON user_subscriptions
    FOR EACH ROW EXECUTE FUNCTION touch_updated_at();

-- tables/webhooks.sql
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
    PRIMARY KEY (id),
    CONSTRAINT webhooks_check CHECK ((secret IS NOT NULL) OR (removed_at IS NOT NULL)),
    CONSTRAINT webhooks_check1 CHECK ((previous_secret IS NULL) = (previous_until IS NULL)),
    CONSTRAINT webhooks_check2 CHECK ((disabled_at IS NULL) = (disabled_because IS NULL)),
    CONSTRAINT webhooks_events_check CHECK ((cardinality(events) > 0) AND (events <@ ARRAY['job.completed', 'job.failed', 'job.cancelled', 'quota.threshold', 'quota.renewed', 'plan.changed'])),
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
    'When it was disabled; null while it receives events.';
COMMENT ON COLUMN webhooks.disabled_because IS
    'Why deliveries stopped.';
COMMENT ON COLUMN webhooks.removed_at IS
    'The row stays until its last deliveries have ended.';
COMMENT ON COLUMN webhooks.older_secret IS
    'Also signs until previous_until, when the secret was rotated twice within a day.';

CREATE UNIQUE INDEX webhooks_url ON webhooks (url) WHERE removed_at IS NULL;

-- tables/weir_locks.sql
CREATE TABLE weir_locks (
    name text NOT NULL,
    PRIMARY KEY (name)
);

COMMENT ON TABLE weir_locks IS
    'Rows to lock: a transaction that must be the only one of its kind locks its row. Any role can take an advisory lock; a row can be locked only by a role that may write it.';
COMMENT ON COLUMN weir_locks.name IS
    'The lock''s name.';

-- tables/weir_schema.sql
CREATE TABLE weir_schema (
    one boolean NOT NULL DEFAULT true,
    release text NOT NULL,
    upgrade int NOT NULL,
    files jsonb NOT NULL,
    migrated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (one),
    CONSTRAINT weir_schema_one_check CHECK (one)
);

COMMENT ON TABLE weir_schema IS
    'The state that `weir migrate` has applied. One row, or none before the first run has ended.';
COMMENT ON COLUMN weir_schema.one IS
    'Always true: there is one row.';
COMMENT ON COLUMN weir_schema.release IS
    'The release of weir that applied the files below.';
COMMENT ON COLUMN weir_schema.upgrade IS
    'The number of the last upgrade in ledger/upgrades/ that is included; 0 is the baseline.';
COMMENT ON COLUMN weir_schema.files IS
    'The SHA-256 of each function and view, by its file in ledger/schema/.';
COMMENT ON COLUMN weir_schema.migrated_at IS
    'When `weir migrate` last changed the schema.';

-- tables/weir_services.sql
CREATE TABLE weir_services (
    name text COLLATE "C" NOT NULL,
    event_type usage_event_type NOT NULL,
    kind text NOT NULL,
    max_attempts smallint NOT NULL,
    unique_by text[] NOT NULL DEFAULT '{}',
    amount bigint,
    amount_member text,
    retry_base double precision,
    retry_factor double precision,
    retry_power double precision,
    retry_max double precision,
    PRIMARY KEY (name),
    CONSTRAINT weir_services_amount_check CHECK (amount >= 0),
    CONSTRAINT weir_services_max_attempts_check CHECK (max_attempts > 0),
    FOREIGN KEY (event_type) REFERENCES meters(name) ON DELETE CASCADE
);

COMMENT ON TABLE weir_services IS
    'The services of weir.toml, for the SQL functions. `weir migrate` writes them.';
COMMENT ON COLUMN weir_services.name IS
    'The service''s name.';
COMMENT ON COLUMN weir_services.event_type IS
    'The meter of the service.';
COMMENT ON COLUMN weir_services.kind IS
    'River''s kind of the service''s jobs.';
COMMENT ON COLUMN weir_services.max_attempts IS
    'The maximum number of attempts of a job.';
COMMENT ON COLUMN weir_services.unique_by IS
    'Members of the arguments by which an unfinished job of the holder is taken for the same.';
COMMENT ON COLUMN weir_services.amount IS
    'The amount that one job reserves; null: amount_member of its arguments, and without that the caller gives it.';
COMMENT ON COLUMN weir_services.amount_member IS
    'The member of the arguments that holds the amount.';
COMMENT ON COLUMN weir_services.retry_base IS
    'Seconds, like retry_max; null leaves retries to River''s policy.';
COMMENT ON COLUMN weir_services.retry_factor IS
    'The factor by which the pause grows with each attempt.';
COMMENT ON COLUMN weir_services.retry_power IS
    'The power of the attempt by which the pause is multiplied.';
COMMENT ON COLUMN weir_services.retry_max IS
    'The longest pause between attempts, in seconds.';

CREATE INDEX weir_services_kind ON weir_services (kind);

-- tables/weir_settings.sql
CREATE TABLE weir_settings (
    one boolean NOT NULL DEFAULT true,
    address_namespace uuid NOT NULL DEFAULT gen_random_uuid(),
    reservation_ttl interval NOT NULL DEFAULT interval '1 hour',
    counts_slots boolean NOT NULL DEFAULT true,
    slots_of_plans jsonb NOT NULL DEFAULT '{}',
    anonymous_slots int NOT NULL DEFAULT 1,
    PRIMARY KEY (one),
    CONSTRAINT weir_settings_anonymous_slots_check CHECK (anonymous_slots > 0),
    CONSTRAINT weir_settings_one_check CHECK (one)
);

COMMENT ON TABLE weir_settings IS
    'Settings that all processes of the installation share. One row.';
COMMENT ON COLUMN weir_settings.one IS
    'Always true: there is one row.';
COMMENT ON COLUMN weir_settings.address_namespace IS
    'The namespace in which client addresses and subjects become UUIDs, so that no table contains an address.';
COMMENT ON COLUMN weir_settings.reservation_ttl IS
    'The lifetime of a reservation without renewal.';
COMMENT ON COLUMN weir_settings.counts_slots IS
    'Whether the database enforces slots. `weir migrate` sets this column and the following ones from the environment.';
COMMENT ON COLUMN weir_settings.slots_of_plans IS
    'Slots by plan from the environment; they replace the plans'' own.';
COMMENT ON COLUMN weir_settings.anonymous_slots IS
    'The slots of an anonymous client address.';

-- tables/weir_timelines.sql
CREATE TABLE weir_timelines (
    timeline int NOT NULL,
    first_xid xid8 NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (timeline)
);

COMMENT ON TABLE weir_timelines IS
    'The timelines that this database has been on. A replica that takes over starts a new one, and may lack the last commits of the previous one. It assigns their job ids and transaction ids again.';
COMMENT ON COLUMN weir_timelines.timeline IS
    'The number of the server''s timeline.';
COMMENT ON COLUMN weir_timelines.first_xid IS
    'Every transaction of this timeline alone has this id or a later one.';
COMMENT ON COLUMN weir_timelines.seen_at IS
    'When Weir first saw it.';

-- functions/account/account_of.sql
-- An account: what a user's plan allows of a meter now, and how much of it is used. Returns no row for a client address
-- (of_user is null) or when the plan has no limits for the meter. A caller that decides by this row holds the account's
-- lock.
--
-- - draws: whether to look up grants.
-- - of_month, of_windows, around: the windows of a reservation, as in its columns period_start, windows and created_at.
--   Null: the windows around `at`, the moment of the decision.
-- - period_start to from_grants: the month.
-- - short_…: arrays of the shorter counted windows, null when there are none.
-- - spans and the arrays after it: all windows, the month first.
-- - grant_…: the grants in the order in which they are drawn on.
--
-- One SELECT, not STRICT and without SET, so that the planner inlines it and computes only the columns that the caller
-- reads. Pass no volatile expression.
-- Cost: look-ups by key: the subscription, its plan, the limits, overrides, one balance a window. With draws, also the
-- index range of the unused grants.
-- Callers: weir_submit, weir_extend, check_submission, windows_with_limits; ledger/src/reservation/sql/read.sql,
-- ledger/src/attempts/sql/reserved.sql, ledger/src/read/sql/usage.sql.
CREATE OR REPLACE FUNCTION account_of(of_user uuid, meter text, draws boolean, at timestamptz,
                                      of_month timestamptz DEFAULT NULL, of_windows smallint DEFAULT NULL,
                                      around timestamptz DEFAULT NULL)
RETURNS TABLE (tier text, lane text, slots int, own_slots int, attributes subscription_plans, counted smallint,
               period_start timestamptz, period_end timestamptz, monthly_limit bigint, monthly_ceiling bigint,
               used bigint, reserved bigint, from_grants bigint,
               granted bigint, grant_ids uuid[], grant_amounts bigint[], grant_ends timestamptz[], grant_starts timestamptz[],
               short_spans text[], short_limits bigint[], short_ceilings bigint[], short_used bigint[], short_reserved bigint[],
               spans text[], starts timestamptz[], ends timestamptz[], limits bigint[], ceilings bigint[], used_in bigint[],
               reserved_in bigint[])
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT plan.tier, plan.lane, plan.slots, plan.own_slots, plan.attributes, plan.counted,
           coalesce(of_month, period.period_start), period.period_end, plan.month, plan.month_ceiling,
           coalesce(b.used, 0), coalesce(b.reserved, 0), coalesce(b.from_grants, 0),
           coalesce(granted.amount, 0), granted.ids, granted.amounts, granted.ends, granted.starts,
           short.spans, short.limits, short.ceilings, short.used, short.reserved,
           ARRAY['month'] || short.spans,
           ARRAY[coalesce(of_month, period.period_start)] || short.starts,
           ARRAY[period.period_end] || short.ends,
           ARRAY[plan.month] || short.limits,
           ARRAY[plan.month_ceiling] || short.ceilings,
           ARRAY[coalesce(b.used, 0)] || short.used,
           ARRAY[coalesce(b.reserved, 0)] || short.reserved
    FROM plan_of(of_user, meter, at) plan
    CROSS JOIN LATERAL billing_period(plan.anchor, coalesce(of_month, at)) period
    LEFT JOIN LATERAL (
        SELECT * FROM quota_balances k
        WHERE k.user_id = of_user AND k.event_type = meter AND k.span = 'month'
          AND k.period_start = coalesce(of_month, period.period_start)
        ORDER BY k.generation DESC LIMIT 1
    ) b ON true
    LEFT JOIN LATERAL (
        SELECT sum(g.amount)::bigint AS amount, array_agg(g.id) AS ids, array_agg(g.amount) AS amounts,
               array_agg(g.expires_at) AS ends, array_agg(g.created_at) AS starts
        FROM (SELECT * FROM grants_left(of_user, meter, at) l ORDER BY l.n OFFSET 0) g
        WHERE draws
    ) granted ON true
    LEFT JOIN LATERAL (
        SELECT array_agg(c.span ORDER BY c.mask) AS spans,
               array_agg(c.start ORDER BY c.mask) AS starts,
               array_agg(c.start + c.length ORDER BY c.mask) AS ends,
               array_agg(c.most ORDER BY c.mask) AS limits,
               array_agg(c.ceiling ORDER BY c.mask) AS ceilings,
               array_agg(coalesce(
                   q.used,
                   -- The row may be deleted: see short_window_lifetime().
                   CASE WHEN date_trunc(c.span, around, 'UTC') < now() - (short_window_lifetime() - interval '1 day') THEN (
                       SELECT sum(a.amount)::bigint FROM charged_amounts a
                       WHERE a.user_id = of_user AND a.event_type = meter AND a.span = c.span AND a.period_start = c.start
                   ) END,
                   0) ORDER BY c.mask) AS used,
               array_agg(coalesce(q.reserved, 0) ORDER BY c.mask) AS reserved
        FROM (
            SELECT s.*,
                   CASE s.span WHEN 'day' THEN plan.day WHEN 'hour' THEN plan.hour WHEN 'minute' THEN plan.minute END AS most,
                   CASE s.span WHEN 'day' THEN plan.day_ceiling WHEN 'hour' THEN plan.hour_ceiling
                               WHEN 'minute' THEN plan.minute_ceiling END AS ceiling,
                   date_trunc(s.span, coalesce(around, at), 'UTC') AS start
            FROM short_windows() s
        ) c
        LEFT JOIN LATERAL (
            SELECT * FROM quota_balances k
            WHERE k.user_id = of_user AND k.event_type = meter AND k.span = c.span AND k.period_start = c.start
            ORDER BY k.generation DESC LIMIT 1
        ) q ON true
        WHERE coalesce(of_windows, plan.counted) <> 0 AND coalesce(of_windows, plan.counted) & c.mask <> 0
    ) short ON true
    WHERE of_user IS NOT NULL
$$;

-- functions/account/billing_period.sql
-- The billing period around a moment, in calendar months and UTC. Months are counted from the anchor and not from the
-- previous period, so an anchor on the 31st is the 31st again after February. Returns no row for a null.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: account_of, paid_anchor, period_start_of; set_plan.sql, usage_by_period.sql, import_subscriptions.sql,
-- import_usage.sql and import_reservations.sql of ledger/src/control/sql/.
CREATE OR REPLACE FUNCTION billing_period(anchor timestamptz, at timestamptz)
RETURNS TABLE (period_start timestamptz, period_end timestamptz)
LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 1 AS $$
    SELECT (k.a + make_interval(months => k.n)) AT TIME ZONE 'UTC',
           (k.a + make_interval(months => k.n + 1)) AT TIME ZONE 'UTC'
    FROM (
        SELECT m.a, m.n - (m.a + make_interval(months => m.n) > m.t)::int AS n
        FROM (
            SELECT u.a, u.t,
                   (12 * (date_part('year', u.t) - date_part('year', u.a))
                    + date_part('month', u.t) - date_part('month', u.a))::int AS n
            FROM (SELECT anchor AT TIME ZONE 'UTC' AS a, at AT TIME ZONE 'UTC' AS t OFFSET 0) u
            OFFSET 0
        ) m
        OFFSET 0
    ) k
    WHERE anchor IS NOT NULL AND at IS NOT NULL
$$;

-- functions/account/check_submission.sql
-- The outcome that a submission of this amount would have now, and the current quota. Takes no lock and writes nothing,
-- so another submission may take the room in between. It does not look for repeated keys or equal jobs. The quota is
-- null for a client address (of_user is null). An unknown user has the default plan.
-- Cost: that of account_of(); one look-up by key.
-- Callers: weir_quota; ledger/src/read/check.rs.
CREATE OR REPLACE FUNCTION check_submission(of_holder uuid, of_user uuid, meter text, added bigint,
                                            OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET jit = off
AS $$
DECLARE
    account record;
    room record;
BEGIN
    SELECT coalesce(h.slots_in_use, 0) AS slots_in_use, coalesce(h.parked, 0) AS parked, a.*,
           slots_in_force(of_user, a.tier, coalesce(a.slots, CASE WHEN of_user IS NOT NULL THEN raise_no_limits(meter) END),
                          a.own_slots) AS slots_now
    INTO account
    FROM (SELECT clock_timestamp() AS at OFFSET 0) clock
    LEFT JOIN LATERAL (SELECT * FROM holders k WHERE k.holder = of_holder AND k.event_type = meter
                       ORDER BY k.generation DESC LIMIT 1) h ON true
    LEFT JOIN LATERAL account_of(of_user, meter, coalesce(h.has_grants, true), clock.at) a ON true;
    SELECT * INTO room
    FROM room_for(added, account.spans, account.limits, account.ceilings, account.used_in, account.reserved_in, account.ends,
                  account.from_grants, account.granted);
    outcome := submission_outcome(of_holder, meter, false, account.slots_in_use, account.slots_now, account.parked,
                                  account.attributes, room.full_windows, room.is_too_large);
    IF of_user IS NOT NULL THEN
        quota := quota_json(account.used, account.reserved, account.monthly_limit, account.period_end, account.from_grants,
                            account.granted, account.monthly_ceiling);
    END IF;
    IF outcome = 'over_quota' THEN
        quota := quota || jsonb_build_object('windows', room.full_windows);
    END IF;
END
$$;

-- functions/account/count_scheduled.sql
-- The number of a holder's jobs of a meter that wait for their time or a retry. Counts up to `most`, at most 10 000,
-- because a submission and its group wait for this count.
-- Cost: one index range of at most 10 000 entries.
-- Callers: submission_outcome; ledger/src/reservation/sql/read.sql.
CREATE OR REPLACE FUNCTION count_scheduled(of_holder uuid, meter text, most int) RETURNS int
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN (
        SELECT count(*)
        FROM (
            SELECT FROM quota_reservations r
            WHERE r.holder = of_holder AND r.event_type = meter AND r.due_at IS NOT NULL
            LIMIT greatest(least(most, 10000), 0)
        ) waiting
    );
END
$$;

-- functions/account/create_users.sql
-- Creates the unknown ones of these users, with an active subscription to this plan. Does not change known users.
-- Every user is created here.
--
-- - ids: null elements, the addresses, are skipped.
-- - subjects: the subjects of derived ids; null: the id is the subject. Another user's subject is not taken: a row that
--   was inserted by hand keeps its subject, and must not lock the new user out.
-- - plan: the name. Null: the default plan.
-- - new_users: the number of users created.
--
-- When two transactions create a user at once, one waits for the other.
-- Cost: two inserts a user.
-- Callers: lock_account; ledger/src/reservation/sql/provision.sql, ledger/src/control/sql/create_user.sql and
-- import_users.sql, ledger/src/plans.rs.
CREATE OR REPLACE FUNCTION create_users(ids uuid[], subjects text[], plan text DEFAULT NULL, OUT new_users bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    WITH created AS (
        INSERT INTO users (id, subject)
        SELECT DISTINCT ON (w.id) w.id, CASE WHEN NOT EXISTS (SELECT 1 FROM users u WHERE u.subject = w.subject) THEN w.subject END
        FROM unnest(ids, subjects) AS w (id, subject)
        WHERE w.id IS NOT NULL
        ORDER BY w.id, w.subject
        -- For both keys, because two concurrent first submissions of a user may conflict on either.
        ON CONFLICT DO NOTHING
        RETURNING id
    ), subscribed AS (
        INSERT INTO user_subscriptions (user_id, plan_id)
        SELECT c.id, p.id
        FROM created c
        JOIN subscription_plans p ON CASE WHEN plan IS NULL THEN p.is_default ELSE p.tier = plan END
        ON CONFLICT (user_id) WHERE status = 'active' DO NOTHING
    )
    SELECT count(*) INTO new_users FROM created;
END
$$;

-- functions/account/draw_grants.sql
-- Draws an amount for a job on its user's grants, after the job's earlier draws. The caller holds the account's lock
-- and has checked that the grants cover the amount. The body of this rule for groups is
-- ledger/src/reservation/decide.rs and policy/src/grants.rs (draw) with ledger/src/reservation/sql/draw.sql.
-- Cost: one index range over the user's grants, and a write for each grant that pays.
-- Callers: weir_submit, weir_extend.
CREATE OR REPLACE FUNCTION draw_grants(of_user uuid, meter text, job bigint, drawn bigint, at timestamptz, of_month timestamptz)
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    WITH draws AS (
        INSERT INTO grant_draws (job_id, position, grant_id, amount)
        SELECT job, d.n + g.n - 1, g.id, least(g.amount, drawn - g.before)
        FROM grants_left(of_user, meter, at) g
        CROSS JOIN (SELECT coalesce(max(o.position) + 1, 0) AS n FROM grant_draws o WHERE o.job_id = job) d
        WHERE g.before < drawn
        RETURNING grant_id, amount
    )
    UPDATE grants g SET reserved = g.reserved + d.amount FROM draws d WHERE g.id = d.grant_id;
    UPDATE quota_balances b SET from_grants = b.from_grants + drawn
    WHERE b.ctid = (SELECT k.ctid FROM quota_balances k
                    WHERE k.user_id = of_user AND k.event_type = meter AND k.span = 'month' COLLATE "default"
                      AND k.period_start = of_month
                    ORDER BY k.generation DESC LIMIT 1);
END
$$;

-- functions/account/grants_left.sql
-- The grants of a user and meter that are not used up, in the order in which they are drawn on: earliest expiry first.
-- Rust sorts them the same way in policy/src/grants.rs (draw).
--
-- - n: counts from 1.
-- - before: the sum of all earlier grants.
--
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: the index range of the grants that are not used up.
-- Callers: account_of, draw_grants.
CREATE OR REPLACE FUNCTION grants_left(of_user uuid, meter text, moment timestamptz)
RETURNS TABLE (id uuid, amount bigint, expires_at timestamptz, created_at timestamptz, n bigint, before numeric)
LANGUAGE sql STABLE AS $$
    SELECT g.id, g.amount - g.reserved - g.used, g.expires_at, g.created_at,
           row_number() OVER first_ends,
           sum(g.amount - g.reserved - g.used) OVER first_ends - (g.amount - g.reserved - g.used)
    FROM grants g
    WHERE g.user_id = of_user AND g.event_type = meter AND g.used < g.amount AND g.reserved + g.used < g.amount
      AND (g.expires_at IS NULL OR g.expires_at > moment)
    WINDOW first_ends AS (ORDER BY g.expires_at NULLS LAST, g.created_at, g.id)
$$;

-- functions/account/is_address_id.sql
-- Whether an id is a client address's: a UUID of the variant that RFC 9562 reserves, which no UUID issuer uses. An
-- address and a user therefore never share an id. Rust decides the same in policy/src/subject.rs. The
-- checks of holders.sql and users.sql contain the rule, because functions are created after tables.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: weir_holder.
CREATE OR REPLACE FUNCTION is_address_id(id uuid) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT get_byte(uuid_send(id), 8) >= 224
$$;

-- functions/account/is_imported.sql
-- Whether an import wrote a usage event with this reason, for usage that the other product has billed or has not. Null
-- without a reason. Rust writes the reasons: ledger/src/control/usage_feed.rs.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: move_usage; ledger/src/control/sql/archive_usage.sql and import_faults.sql.
CREATE OR REPLACE FUNCTION is_imported(reason text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT reason IN ('imported', 'imported, not billed')
$$;

-- functions/account/lock_account.sql
-- Locks an account. Creates an unknown holder as a user on the default plan. known_as: the subject's text, if it is not
-- the id. The body of this rule for groups is ledger/src/reservation/sql/provision.sql.
-- Cost: one look-up by key; three inserts for a new user. Waits for the account's lock.
-- Callers: weir_submit.
CREATE OR REPLACE FUNCTION lock_account(of_holder uuid, meter text, known_as text) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM 1 FROM holders k WHERE k.holder = of_holder AND k.event_type = meter
    ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE;
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM create_users(ARRAY[of_holder], ARRAY[known_as]);
    INSERT INTO holders (holder, event_type, user_id) VALUES (of_holder, meter, of_holder)
    ON CONFLICT (holder, event_type) DO NOTHING;
    PERFORM 1 FROM holders h WHERE h.holder = of_holder AND h.event_type = meter FOR NO KEY UPDATE;
END
$$;

-- functions/account/lock_holder_of_job.sql
-- Locks the account of a job's reservation and returns it; null without a reservation. A deleted holders row is
-- created again from its reservations. The settlement of groups does this with create_holder.sql and
-- rebuild_holders.sql of ledger/src/settlement/sql/.
-- Cost: two look-ups by key. Waits for the account's lock.
-- Callers: weir_complete, weir_extend, fail_attempt; ledger/src/attempts/outstanding.rs.
CREATE OR REPLACE FUNCTION lock_holder_of_job(job bigint, OUT holder uuid, OUT event_type text)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    SELECT h.holder, h.event_type INTO lock_holder_of_job.holder, lock_holder_of_job.event_type
    FROM quota_reservations r
    CROSS JOIN LATERAL (
        SELECT * FROM holders k WHERE k.holder = r.holder AND k.event_type = r.event_type
        ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE
    ) h
    WHERE r.job_id = job;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT r.holder, r.event_type INTO lock_holder_of_job.holder, lock_holder_of_job.event_type
    FROM quota_reservations r WHERE r.job_id = job;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- The row was deleted. Create it again from its reservations.
    INSERT INTO holders (holder, event_type, user_id, slots_in_use, parked)
    SELECT r.holder, r.event_type, max(r.user_id::text)::uuid, count(r.admitted_at), count(r.parked_at)
    FROM quota_reservations r
    WHERE r.holder = lock_holder_of_job.holder AND r.event_type = lock_holder_of_job.event_type
    GROUP BY 1, 2
    ON CONFLICT DO NOTHING;
    PERFORM 1 FROM holders h
    WHERE h.holder = lock_holder_of_job.holder AND h.event_type = lock_holder_of_job.event_type FOR NO KEY UPDATE;
END
$$;

-- functions/account/lock_holders.sql
-- Locks all accounts of these holders, in order. Every writer of reservations or usage events takes these locks before
-- it touches a balance. So all writers use one order, and one row shows who is blocked.
-- Cost: one index range a holder. Waits for the locks.
-- Callers: the triggers that count; changes of ledger/src/control/; repairs in ledger/src/audit/ and
-- ledger/src/settlement/.
CREATE OR REPLACE FUNCTION lock_holders(of_holders uuid[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM 1 FROM holders h WHERE h.holder = ANY (of_holders) ORDER BY h.holder, h.event_type FOR NO KEY UPDATE;
END
$$;

-- functions/account/max_accepted.sql
-- The amount above which nothing is accepted: the limit, or a soft limit's ceiling. A ceiling below the limit has no
-- effect. Null is unlimited.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: reserve_in_windows, room_in; ledger/src/audit/sql/i1_limits.sql.
CREATE OR REPLACE FUNCTION max_accepted(most bigint, ceiling bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN most IS NOT NULL THEN greatest(most, ceiling) END
$$;

-- functions/account/move_usage.sql
-- Moves a user's usage and reservations since a moment to the billing period that starts then, imported usage included.
-- Earlier ones stay in their periods. Adjustments also stay, unless their period starts later or its sum would become
-- negative. Then all its usage moves. The caller holds the locks of the user's accounts and has changed the anchor.
-- Cost: the user's usage events since a month before, and all reservations; a write for each row that moves.
-- Callers: ledger/src/control/plan.rs and import.rs.
CREATE OR REPLACE FUNCTION move_usage(of_user uuid, since timestamptz) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    counters CONSTANT text := coalesce(current_setting('weir.counters', true), '');
BEGIN
    -- The function updates the counters itself.
    PERFORM set_config('weir.counters', 'kept', true);
    WITH candidates AS MATERIALIZED (
        SELECT u.id, u.event_type, u.period_start AS old_start, u.quota_amount, u.from_grants,
               coalesce(is_imported(u.reason), true) AND coalesce(u.reserved_at, u.created_at) >= since AS is_since
        FROM usage_events u
        -- A period that reaches beyond `since` starts at most a month before.
        WHERE u.user_id = of_user AND u.period_start <> since AND u.period_start > since - interval '32 days'
          AND u.created_at > since - interval '32 days'
    ), whole_periods AS MATERIALIZED (
        SELECT c.event_type, c.old_start
        FROM candidates c
        GROUP BY 1, 2
        HAVING c.old_start > since
            OR sum(c.quota_amount) < coalesce(sum(c.quota_amount) FILTER (WHERE c.is_since), 0)
    ), moved_usage AS (
        UPDATE usage_events u SET period_start = since
        FROM candidates c
        WHERE u.id = c.id
          AND (c.is_since OR (c.event_type, c.old_start) IN (SELECT w.event_type, w.old_start FROM whole_periods w))
        RETURNING c.event_type, c.old_start, c.quota_amount AS used, 0::bigint AS reserved, c.from_grants
    ), moved_reservations AS (
        UPDATE quota_reservations r SET period_start = since
        FROM (SELECT k.job_id, k.period_start AS old_start FROM quota_reservations k
              WHERE k.user_id = of_user AND k.period_start <> since AND k.created_at >= since) o
        WHERE r.job_id = o.job_id
        RETURNING r.event_type, o.old_start, 0::bigint, r.reserved_amount, r.from_grants
    ), sums AS MATERIALIZED (
        SELECT m.event_type, m.old_start, sum(m.used)::bigint AS used, sum(m.reserved)::bigint AS reserved,
               sum(m.from_grants)::bigint AS from_grants
        FROM (SELECT * FROM moved_usage UNION ALL SELECT * FROM moved_reservations) m
        GROUP BY 1, 2
    ), taken AS (
        UPDATE quota_balances b
        SET used = b.used - s.used, reserved = b.reserved - s.reserved, from_grants = b.from_grants - s.from_grants,
            changes = b.changes + 1
        FROM sums s
        WHERE b.user_id = of_user AND b.event_type = s.event_type AND b.span = 'month' AND b.period_start = s.old_start
    )
    INSERT INTO quota_balances AS b (user_id, event_type, span, period_start, used, reserved, from_grants, granted_limit)
    SELECT of_user, s.event_type, 'month', since, sum(s.used), sum(s.reserved), sum(s.from_grants),
           sum(s.used) + sum(s.reserved) - sum(s.from_grants)
    FROM sums s
    GROUP BY s.event_type ORDER BY s.event_type
    ON CONFLICT (user_id, event_type, span, period_start) DO UPDATE
        SET used = b.used + excluded.used, reserved = b.reserved + excluded.reserved,
            from_grants = b.from_grants + excluded.from_grants, changes = b.changes + 1,
            -- It was accepted in another period.
            granted_limit = greatest(b.granted_limit, b.used + b.reserved - b.from_grants + excluded.granted_limit);
    -- The months that ended with the change renew now.
    UPDATE quota_thresholds q SET ends_at = now()
    WHERE q.user_id = of_user AND q.span = 'month' AND q.period_start <> since AND q.ends_at > now();
    PERFORM set_config('weir.counters', counters, true);
END
$$;

-- functions/account/paid_anchor.sql
-- The anchor of billing periods that makes a paid period's start and end the start and end of such periods. The known
-- anchor stays when it does. Without an end, the start is a new anchor. With an end on a later day, as in 28 February to
-- 31 March, the end has the anchor's day. Returns null when the period has no whole number of months, from 1 to 36.
-- Cost: no table.
-- Callers: ledger/src/control/plan.rs, ledger/src/control/sql/import_subscriptions.sql.
CREATE OR REPLACE FUNCTION paid_anchor(paid_start timestamptz, paid_end timestamptz, known timestamptz) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    s CONSTANT timestamp := paid_start AT TIME ZONE 'UTC';
    e CONSTANT timestamp := paid_end AT TIME ZONE 'UTC';
    -- Months are counted from the start, or back from the end.
    from_start CONSTANT boolean := paid_end IS NULL OR EXISTS (
        SELECT FROM generate_series(1, 36) n WHERE s + make_interval(months => n) = e);
    from_end CONSTANT boolean := EXISTS (
        SELECT FROM generate_series(1, 36) n WHERE e - make_interval(months => n) = s);
BEGIN
    RETURN CASE
        WHEN NOT from_start AND NOT from_end THEN NULL
        WHEN (SELECT p.period_start FROM billing_period(known, paid_start) p) = paid_start
             AND (paid_end IS NULL OR (SELECT p.period_start FROM billing_period(known, paid_end) p) = paid_end) THEN known
        WHEN from_start THEN paid_start
        -- Four years earlier, 29 February is the same day.
        ELSE (e - interval '4 years') AT TIME ZONE 'UTC'
    END;
END
$$;

-- functions/account/period_start_of.sql
-- The start of a user's billing period around a moment. Without a subscription, billing periods are calendar months.
-- Cost: two look-ups by key.
-- Callers: fill_quota_row; ledger/src/control/plan.rs and import.rs, ledger/src/control/sql/adjust.sql, ledger/src/control/sql/used.sql.
CREATE OR REPLACE FUNCTION period_start_of(of_user uuid, at timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN (SELECT p.period_start FROM subscription_of(of_user, at) s CROSS JOIN LATERAL billing_period(s.anchor, at) p);
END
$$;

-- functions/account/plan_change_refusal.sql
-- Why an event of a payment provider is not applied: `older` than another one that counts, or the end of a `superseded`
-- subscription. Null: it is applied.
--
-- - The end of a subscription is an event with the default plan.
-- - An event is older if a later event was applied, or if a later event of its subscription is known. The end of
--   another subscription does not count.
-- - Within the same time, the end of a subscription is its last event.
-- - of_subscription: the provider's id; null when the event names none.
--
-- Cost: the user's plan changes.
-- Callers: ledger/src/control/plan.rs, ledger/src/control/sql/import_subscriptions.sql.
CREATE OR REPLACE FUNCTION plan_change_refusal(of_user uuid, new_plan text, at timestamptz, of_subscription text) RETURNS text
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    WITH changes AS (
        SELECT c.subscription, c.occurred_at, c.recorded_at, c.applied, c.plan = d.tier AS is_end, new_plan = d.tier AS ends_now
        FROM plan_changes c
        JOIN subscription_plans d ON d.is_default
        WHERE c.user_id = of_user
    ), latest AS (
        SELECT * FROM changes WHERE applied ORDER BY recorded_at DESC LIMIT 1
    )
    SELECT CASE
        WHEN EXISTS (
            SELECT FROM changes c
            WHERE (c.occurred_at > at AND (c.applied AND NOT coalesce(c.is_end AND c.subscription <> of_subscription, false)
                                           OR coalesce(c.subscription = of_subscription, false)))
               OR (c.occurred_at = at AND c.subscription = of_subscription AND c.is_end AND NOT c.ends_now)
        ) THEN 'older'
        WHEN EXISTS (SELECT FROM latest l WHERE l.ends_now AND l.subscription <> of_subscription) THEN 'superseded'
    END
$$;

-- functions/account/plan_of.sql
-- A user's plan at a moment and its limits for a meter: the plan of the active subscription, else the default plan. The
-- user's overrides replace the plan's limits, and are hard. Returns no row when the plan has no limits for the meter.
--
-- - attributes: the plan's row, for its optional attributes.
-- - counted: the windows other than the month in which the meter is counted.
-- - anchor: the start from which billing periods are counted.
--
-- One SELECT, not STRICT and without SET, so that the planner inlines it and drops the columns that its caller does not
-- use.
-- Cost: five look-ups by key.
-- Callers: account_of, pass_on_slots; ledger/src/audit/sql/i1_limits.sql, i2_slots.sql and i5_waiting.sql,
-- ledger/src/plans.rs, ledger/src/settlement/sql/lock.sql and waiting.sql.
CREATE OR REPLACE FUNCTION plan_of(of_user uuid, meter text, at timestamptz)
RETURNS TABLE (tier text, lane text, slots int, own_slots int, attributes subscription_plans, anchor timestamptz, counted smallint,
               month bigint, day bigint, hour bigint, minute bigint,
               month_ceiling bigint, day_ceiling bigint, hour_ceiling bigint, minute_ceiling bigint)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT p.tier::text, p.lane, l.slots, own.slots, p, s.anchor, l.counted,
           nullif(coalesce(own.month, l.month), -1), nullif(coalesce(own.day, l.day), -1),
           nullif(coalesce(own.hour, l.hour), -1), nullif(coalesce(own.minute, l.minute), -1),
           CASE WHEN own.month IS NULL THEN l.month_ceiling END, CASE WHEN own.day IS NULL THEN l.day_ceiling END,
           CASE WHEN own.hour IS NULL THEN l.hour_ceiling END, CASE WHEN own.minute IS NULL THEN l.minute_ceiling END
    FROM subscription_of(of_user, at) s
    JOIN subscription_plans p ON p.id = s.plan_id
    JOIN plan_limits l ON l.plan_id = p.id AND l.event_type = meter
    LEFT JOIN limit_overrides own
        ON own.user_id = of_user AND own.event_type = meter AND (own.expires_at IS NULL OR own.expires_at > at)
    OFFSET 0
$$;

-- functions/account/quota_json.sql
-- A quota as the API returns it. Timestamps have microseconds only if they are not zero. Rust computes the same in
-- ledger/src/reservation/submission.rs (Quota::of) and policy/src/admission.rs (Allowance).
-- STABLE like to_char() and without SET, so that the planner inlines it.
-- Cost: no table.
-- Callers: weir_extend, weir_submit, check_submission, room_for; ledger/src/attempts/sql/reserved.sql.
CREATE OR REPLACE FUNCTION quota_json(used bigint, reserved bigint, most bigint, reset_at timestamptz, from_grants bigint DEFAULT 0,
                           granted bigint DEFAULT 0, ceiling bigint DEFAULT NULL) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'used', used, 'reserved', reserved, 'limit', most,
        'ceiling', CASE WHEN ceiling > most THEN ceiling END,
        'overage', CASE WHEN ceiling > most THEN greatest(used::numeric + reserved - from_grants - most, 0)::bigint ELSE 0 END,
        'remaining', CASE WHEN most IS NOT NULL
                          THEN least(room_in(most, ceiling, used, reserved, from_grants, granted),
                                     9223372036854775807)::bigint END,
        'reset_at', regexp_replace(to_char(reset_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '[.]?0+$', '') || 'Z')
$$;

-- functions/account/raise_no_limits.sql
-- Raises P0001. A plan without limits for a meter is a catalogue error, not an unlimited plan.
-- Cost: none.
-- Callers: weir_submit, weir_extend, check_submission; ledger/src/reservation/sql/read.sql, ledger/src/attempts/sql/reserved.sql.
CREATE OR REPLACE FUNCTION raise_no_limits(event_type text) RETURNS int
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RAISE EXCEPTION 'the plan has no limits for the meter %', event_type
        USING HINT = 'run `weir migrate` with the weir.toml that defines the meter';
END
$$;

-- functions/account/reserve_in_windows.sql
-- Reserves an amount in a user's windows. spans, starts, limits, ceilings and used_in are as in account_of(). Creates
-- the missing balances. The caller holds the account's lock, so a balance keeps its place (ctid), and no other
-- transaction creates one. The body of this rule for groups is ledger/src/reservation/sql/update_balances.sql.
-- Cost: one look-up by key and one write a window.
-- Callers: weir_submit, weir_extend.
CREATE OR REPLACE FUNCTION reserve_in_windows(of_user uuid, meter text, amount bigint, spans text[], starts timestamptz[],
                                              limits bigint[], ceilings bigint[], used_in bigint[])
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT w.span, w.start, w.used, coalesce(max_accepted(w.most, w.ceiling), 9223372036854775807) AS accepted,
               -- Text parameters have the meter's collation, which the index does not have for spans.
               (SELECT k.ctid FROM quota_balances k
                WHERE k.user_id = of_user AND k.event_type = meter AND k.span = w.span COLLATE "default"
                  AND k.period_start = w.start
                ORDER BY k.generation DESC LIMIT 1) AS place
        FROM unnest(spans, starts, limits, ceilings, used_in) AS w (span, start, most, ceiling, used)
    ), updated AS (
        UPDATE quota_balances b
        SET reserved = b.reserved + amount,
            -- Usage above a limit that was lowered later stays allowed.
            granted_limit = greatest(n.accepted, b.used + b.reserved - b.from_grants),
            changes = b.changes + 1
        FROM wanted n
        WHERE b.ctid = n.place
    )
    INSERT INTO quota_balances (user_id, event_type, span, period_start, used, reserved, granted_limit)
    SELECT of_user, meter, n.span, n.start, n.used, amount, n.accepted FROM wanted n WHERE n.place IS NULL;
END
$$;

-- functions/account/retention_of.sql
-- The retention of a plan's finished jobs; null keeps them indefinitely. A hundred years or more also count as without
-- end, because a time plus such an interval can be out of range.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: ledger/src/reconciliation/sql/clean_finished.sql, ledger/src/reconciliation/sql/keep_finished.sql.
CREATE OR REPLACE FUNCTION retention_of(retention_days int) RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN retention_days < 36500 THEN retention_days END * interval '1 day'
$$;

-- functions/account/retry_lead.sql
-- A retry requests a slot this long before its due time, so that it can start on time.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: fail_attempt; ledger/src/settlement/sql/release.sql.
CREATE OR REPLACE FUNCTION retry_lead() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT interval '500 milliseconds'
$$;

-- functions/account/room_for.sql
-- Whether an account has room for an amount, and what pays for it. Grants pay for the part that exceeds the month's
-- limit. The rest of that part is overage. The body of this rule for groups is policy/src/admission.rs
-- (Account) with ledger/src/reservation/decide.rs; native/tests/suite/differential.rs compares the two.
--
-- Parameters: the columns of account_of() with these names, and:
--
-- - added: the requested amount.
-- - full_windows: the windows without room, as the API shows them; null when all have room.
-- - is_too_large: whether a balance would exceed 9223372036854775807.
-- - drawn: the part that grants pay for.
--
-- Cost: no table.
-- Callers: weir_submit, weir_extend, check_submission.
CREATE OR REPLACE FUNCTION room_for(added bigint, spans text[], limits bigint[], ceilings bigint[], used_in bigint[],
                                    reserved_in bigint[], ends timestamptz[], from_grants bigint, granted bigint,
                                    OUT full_windows jsonb, OUT is_too_large boolean, OUT drawn bigint, OUT overage bigint)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    beyond bigint;
BEGIN
    SELECT jsonb_agg(jsonb_build_object('window', w.span)
                     || quota_json(w.used, w.reserved, w.most, w.past, g.paid, g.granted, w.ceiling))
               FILTER (WHERE added > room_in(w.most, w.ceiling, w.used, w.reserved, g.paid, g.granted)),
           added > 0 AND bool_or(w.used::numeric + w.reserved + added > 9223372036854775807)
    INTO full_windows, is_too_large
    FROM unnest(spans, limits, used_in, reserved_in, ends, ceilings) AS w (span, most, used, reserved, past, ceiling)
    CROSS JOIN LATERAL (
        SELECT CASE w.span WHEN 'month' THEN room_for.from_grants ELSE 0 END AS paid,
               CASE w.span WHEN 'month' THEN room_for.granted ELSE 0 END AS granted
    ) g;
    IF full_windows IS NULL AND NOT is_too_large THEN
        beyond := CASE WHEN limits[1] IS NULL THEN 0 ELSE greatest(
            added - greatest(limits[1]::numeric - (used_in[1]::numeric + reserved_in[1] - from_grants), 0), 0) END;
        drawn := least(beyond, granted);
        overage := beyond - drawn;
    END IF;
END
$$;

-- functions/account/room_in.sql
-- The amount that a window still accepts; null is unlimited. Rust: policy/src/admission.rs (Allowance::remaining).
--
-- - paid: the part of used and reserved that grants pay for.
-- - granted: what is left of the grants.
--
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: quota_json, room_for.
CREATE OR REPLACE FUNCTION room_in(most bigint, ceiling bigint, used bigint, reserved bigint, paid bigint, granted bigint)
RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN most IS NOT NULL
                THEN greatest(max_accepted(most, ceiling)::numeric - (used::numeric + reserved - paid), 0) + granted END
$$;

-- functions/account/short_window_lifetime.sql
-- The balance of a window shorter than a month is kept for this long after its start. Maintenance then deletes it if it
-- has no reservations. Readers leave a margin of a day:
--
-- - From a day before the deletion, when the row may be missing, account_of() sums up the window's usage events.
-- - rebuild_balances.sql does not create such a row again.
-- - The audit ignores the window from another day before, because a rebuild leaves it unchanged.
--
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: account_of; ledger/src/reconciliation/sql/clean_windows.sql, ledger/src/settlement/sql/rebuild_balances.sql,
-- ledger/src/audit/sql/i6_balances.sql.
CREATE OR REPLACE FUNCTION short_window_lifetime() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT interval '3 days'
$$;

-- functions/account/short_windows.sql
-- The windows shorter than the month, with the bit of each in columns such as plan_limits.counted and
-- quota_reservations.windows. Rust has the same in policy/src/span.rs (seconds, bit).
--
-- One SELECT, not STRICT and without SET, so that the planner inlines it.
-- Cost: no table.
-- Callers: account_of, windows_of, count_limited_windows; the views charged_amounts and reserved_amounts;
-- ledger/src/control/sql/usage_by_period.sql.
CREATE OR REPLACE FUNCTION short_windows() RETURNS TABLE (mask int, span text, length interval)
LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 3 AS $$
    SELECT w.mask, w.span, w.length
    FROM (VALUES (1, 'day', interval '24 hours'), (2, 'hour', interval '1 hour'), (4, 'minute', interval '1 minute'))
        AS w (mask, span, length)
$$;

-- functions/account/slot_limit.sql
-- The slot limit of a holder: its override, else the configured limit of its plan, else the plan's own. A holder
-- without a plan for the meter, such as a client address, has the limit of an address. Rust decides the same in
-- ledger/src/rules.rs.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: slots_in_force; ledger/src/audit/sql/i2_slots.sql and i5_waiting.sql, ledger/src/settlement/sql/waiting.sql.
CREATE OR REPLACE FUNCTION slot_limit(of_plan text, own_slots int, configured bigint, slots_of_plan int, anonymous bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN of_plan IS NULL THEN anonymous ELSE coalesce(own_slots, configured, slots_of_plan) END
$$;

-- functions/account/slots_in_force.sql
-- The slot limit of a holder by the settings that Weir's processes wrote last; 2147483647 is unlimited. PL/pgSQL, so
-- that its query is planned once per session.
-- Cost: one row.
-- Callers: weir_submit, check_submission, pass_on_slots.
CREATE OR REPLACE FUNCTION slots_in_force(of_user uuid, plan text, slots_of_plan int, own_slots int) RETURNS int
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    s weir_settings;
BEGIN
    SELECT * INTO s FROM weir_settings;
    RETURN CASE WHEN NOT s.counts_slots THEN 2147483647
                ELSE slot_limit(CASE WHEN of_user IS NOT NULL THEN plan END, own_slots,
                                (s.slots_of_plans ->> plan)::bigint, slots_of_plan, s.anonymous_slots)::int END;
END
$$;

-- functions/account/subject_id.sql
-- The id of a subject that is not a UUID: a UUIDv8 of SHA-256, so that it can be computed in any language. Rust
-- computes the same in ledger/src/holder.rs.
-- Cost: no table.
-- Callers: weir_holder; ledger/src/control/sql/import_prepare.sql.
CREATE OR REPLACE FUNCTION subject_id(namespace uuid, subject text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    h CONSTANT bytea := substr(sha256(uuid_send(namespace) || convert_to('subject:' || subject, 'UTF8')), 1, 16);
BEGIN
    RETURN encode(set_byte(set_byte(h, 6, get_byte(h, 6) & 15 | 128), 8, get_byte(h, 8) & 63 | 128), 'hex')::uuid;
END
$$;

-- functions/account/subject_of.sql
-- The text that names a user, or its id.
-- Cost: one look-up by key.
-- Callers: emit_job_ends, emit_plan_change, emit_renewals, emit_thresholds.
CREATE OR REPLACE FUNCTION subject_of(of_user uuid) RETURNS text LANGUAGE plpgsql STABLE STRICT
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN coalesce((SELECT u.subject FROM users u WHERE u.id = of_user), of_user::text);
END
$$;

-- functions/account/submission_outcome.sql
-- The outcome of a submission, by its account and the result of room_for(): over_quota, too_large, admitted,
-- too_many_waiting or parked. The body of this rule for groups is policy/src/admission.rs (Account) with
-- ledger/src/reservation/decide.rs; native/tests/suite/differential.rs compares the two.
--
-- - is_for_later: whether the job has a time, and so asks for a slot then.
-- - slots_now: the holder's slot limit.
-- - plan: the plan's attributes. Jobs beyond its max_waiting may not wait; null: unlimited.
--
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table; count_scheduled() when the job has to wait and the plan has max_waiting.
-- Callers: weir_submit, check_submission.
CREATE OR REPLACE FUNCTION submission_outcome(of_holder uuid, meter text, is_for_later boolean, slots_in_use int, slots_now int,
                                              parked int, plan subscription_plans, full_windows jsonb,
                                              is_too_large boolean)
RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN full_windows IS NOT NULL THEN 'over_quota'
        WHEN is_too_large THEN 'too_large'
        WHEN NOT is_for_later AND parked = 0 AND slots_in_use < slots_now THEN 'admitted'
        WHEN plan.max_waiting IS NOT NULL
             AND parked + count_scheduled(of_holder, meter, plan.max_waiting - parked) >= plan.max_waiting
            THEN 'too_many_waiting'
        ELSE 'parked'
    END
$$;

-- functions/account/subscription_of.sql
-- A user's plan at a moment, and the anchor of its billing periods. Both come from the active subscription. Its
-- scheduled plan takes effect at next_plan_at, even before it is written to plan_id. Without a subscription, and for a
-- null user: the default plan and calendar months. Always one row.
--
-- This is the one place that decides which plan counts now. Two places have parts of the rule: emit_plan_change() for a
-- replaced row, and ledger/src/control/sql/apply_scheduled.sql, which writes the scheduled plan.
-- One SELECT, not STRICT and without SET, so that the planner
-- inlines it into the statement that joins it.
-- Cost: two look-ups by key.
-- Callers: period_start_of, plan_of, tier_of; plan_status.sql, set_plan.sql, usage_by_period.sql,
-- import_subscriptions.sql, import_usage.sql and import_reservations.sql of ledger/src/control/sql/;
-- ledger/src/reconciliation/sql/clean_finished.sql and keep_finished.sql.
CREATE OR REPLACE FUNCTION subscription_of(of_user uuid, at timestamptz)
RETURNS TABLE (plan_id uuid, anchor timestamptz)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT coalesce(CASE WHEN s.next_plan_at <= at THEN s.next_plan_id ELSE s.plan_id END, d.id),
           coalesce(s.current_period_start, timestamptz '2000-01-01 00:00:00+00')
    FROM subscription_plans d
    LEFT JOIN user_subscriptions s ON s.user_id = of_user AND s.status = 'active'
    WHERE d.is_default
$$;

-- functions/account/tier_of.sql
-- The name of a user's plan at a moment, as the API shows it; `anonymous` for a null user. Always one row.
-- One SELECT, not STRICT and without SET, so that the planner inlines it into the statement that joins it.
-- Cost: three look-ups by key.
-- Callers: ledger/src/read/sql/busiest_holders.sql, deleted_jobs.sql, job_view.sql, plan_jobs.sql and
-- plan_reservations.sql.
CREATE OR REPLACE FUNCTION tier_of(of_user uuid, at timestamptz) RETURNS TABLE (tier text)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT CASE WHEN of_user IS NULL THEN 'anonymous' ELSE p.tier::text END
    FROM subscription_of(of_user, at) s
    JOIN subscription_plans p ON p.id = s.plan_id
$$;

-- functions/account/utc_text.sql
-- A timestamp as it is written in JSON: RFC 3339 in UTC with microseconds.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: attempt_error, emit, emit_job_ends, emit_renewals, emit_thresholds; ledger/src/control/sql/import_subscriptions.sql.
CREATE OR REPLACE FUNCTION utc_text(at timestamptz) RETURNS text LANGUAGE sql STABLE STRICT AS $$
    SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- functions/account/uuid_of_subject.sql
-- A subject as a UUID, in any spelling; null for any other text. Rust: policy/src/subject.rs (uuid).
-- Cost: no table.
-- Callers: weir_holder, weir_submit; ledger/src/control/sql/import_prepare.sql.
CREATE OR REPLACE FUNCTION uuid_of_subject(subject text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
DECLARE
    hyphenated CONSTANT text := '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}';
BEGIN
    IF subject ~* format('^([0-9a-f]{32}|%1$s|\{%1$s\}|urn:uuid:%1$s)$', hyphenated) THEN
        RETURN regexp_replace(subject, '^urn:uuid:', '', 'i')::uuid;
    END IF;
    RETURN NULL;
END
$$;

-- functions/account/was_deleted.sql
-- Whether a user was deleted in the last 30 days. For that long, only the user's own first submission creates it again.
-- ledger/src/reconciliation/mod.rs deletes older records.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: one look-up by key.
-- Callers: ledger/src/control/sql/create_user.sql and import_prepare.sql.
CREATE OR REPLACE FUNCTION was_deleted(of_user uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM deleted_users d
                   WHERE d.hash = sha256(convert_to(of_user::text, 'UTF8')) AND d.deleted_at > now() - interval '30 days')
$$;

-- functions/account/windows_of.sql
-- The windows that an amount counts in: the month, and the windows around a moment that the bits name.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: count_reservations, count_usage_events, charge_reservation; ledger/src/control/sql/import_accept.sql.
CREATE OR REPLACE FUNCTION windows_of(month_start timestamptz, windows smallint, at timestamptz)
RETURNS TABLE (span text, period_start timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT 'month', month_start WHERE month_start IS NOT NULL
    UNION ALL
    SELECT w.span, date_trunc(w.span, at, 'UTC')
    FROM short_windows() w
    WHERE windows & w.mask <> 0 AND month_start IS NOT NULL
$$;

-- functions/account/windows_with_limits.sql
-- The current month and day of a user and meter, with their limits. Omits windows without a limit. Returns no row when
-- the plan has no limits for the meter.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: as account_of().
-- Callers: emit_thresholds, emit_renewals.
CREATE OR REPLACE FUNCTION windows_with_limits(of_user uuid, meter text, moment timestamptz)
RETURNS TABLE (span text, period_start timestamptz, ends_at timestamptz, most bigint, used bigint)
LANGUAGE sql STABLE AS $$
    SELECT w.*
    FROM account_of(of_user, meter, false, moment) a
    CROSS JOIN LATERAL unnest(a.spans, a.starts, a.ends, a.limits, a.used_in) AS w (span, period_start, ends_at, most, used)
    WHERE w.span IN ('month', 'day') AND w.most > 0
$$;

-- functions/api/amount_of.sql
-- The maximum amount that a submission may use: the caller's amount, else the service's, else the amount_member of the
-- arguments.
-- Errors: 22023 when there is no amount, when it is not from 0 to 10^15, or when the member is not from 1 to 10^15. Rust
-- decides the same in native/src/config/service.rs (Amount, MAX_AMOUNT).
-- Cost: no table.
-- Callers: weir_submit, weir_quota.
CREATE OR REPLACE FUNCTION amount_of(service weir_services, args jsonb, requested bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    max_amount CONSTANT bigint := 1000000000000000;
    amount bigint := coalesce(requested, service.amount);
BEGIN
    IF amount IS NULL AND service.amount_member IS NOT NULL THEN
        IF jsonb_typeof(args -> service.amount_member) = 'number'
           AND args ->> service.amount_member ~ '^[0-9]{1,16}$' THEN
            amount := (args ->> service.amount_member)::bigint;
        END IF;
        IF amount IS NULL OR amount NOT BETWEEN 1 AND max_amount THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('%I must be a whole number from 1 to %s', service.amount_member, max_amount);
        END IF;
    END IF;
    IF amount IS NULL THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('service %s has no default amount; pass the amount', service.name);
    END IF;
    IF amount NOT BETWEEN 0 AND max_amount THEN
        RAISE invalid_parameter_value USING MESSAGE = format('amount must be from 0 to %s', max_amount);
    END IF;
    RETURN amount;
END
$$;

-- functions/api/is_attempt_without_holder.sql
-- Whether this attempt is running and belongs to a service's job without a reservation.
-- Cost: three look-ups by key.
-- Callers: weir_extend, weir_progress.
CREATE OR REPLACE FUNCTION is_attempt_without_holder(job_id bigint, attempt int)
RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN NOT EXISTS (SELECT 1 FROM quota_reservations q WHERE q.job_id = is_attempt_without_holder.job_id)
       AND EXISTS (SELECT 1 FROM river_job j
                   WHERE j.id = is_attempt_without_holder.job_id AND j.attempt = is_attempt_without_holder.attempt
                     AND (j.state = 'running') IS TRUE AND is_service_kind(j.kind));
END
$$;

-- functions/api/is_service_kind.sql
-- Whether jobs of this kind belong to a service. The functions for other languages accept only those. Other jobs, such
-- as webhook deliveries, are not for role weir_worker.
-- Cost: a scan of weir_services, which has one row a service.
-- Callers: the functions of this folder.
CREATE OR REPLACE FUNCTION is_service_kind(kind text) RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM weir_services s WHERE s.kind = is_service_kind.kind);
END
$$;

-- functions/api/key_lifetime.sql
-- The lifetime of an idempotency key. After that, the same key creates another job.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: weir_submit; ledger/src/reservation/sql/earlier.sql and free_keys.sql,
-- ledger/src/reconciliation/sql/clean_submissions.sql. Documents that name the 24 hours: weir_submit.sql,
-- tables/submissions.sql, native/src/api/jobs.rs and batch.rs, clients/go/weir.go, clients/typescript/weir.ts,
-- docs/tutorial/first-session.md.
CREATE OR REPLACE FUNCTION key_lifetime() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT interval '24 hours'
$$;

-- functions/api/raise_no_service.sql
-- Raises 22023 for a service that does not exist, with the existing ones as the hint.
-- Cost: the services.
-- Callers: weir_submit, weir_quota.
CREATE OR REPLACE FUNCTION raise_no_service(service text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RAISE invalid_parameter_value USING
        MESSAGE = format('unknown service %s', service),
        HINT = format('the services are %s; run `weir migrate` to add those of weir.toml',
                      coalesce((SELECT string_agg(s.name, ', ' ORDER BY s.name) FROM weir_services s), 'none'));
END
$$;

-- functions/api/record_heartbeat.sql
-- Records that a worker of another language is alive, and registers it if it is new.
-- Cost: one write.
-- Callers: weir_claim, weir_heartbeat.
CREATE OR REPLACE FUNCTION record_heartbeat(worker text) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    INSERT INTO processes (client_id) VALUES (worker)
    ON CONFLICT (client_id) DO UPDATE SET beat_at = clock_timestamp();
END
$$;

-- functions/api/require_read_committed.sql
-- Refuses (25000) every isolation level but READ COMMITTED. A decision is correct only if each statement sees
-- everything that was committed before it. name: the calling function, for the message.
-- Errors: 25000.
-- Cost: no table.
-- Callers: weir_submit, weir_complete, weir_extend, fail_attempt.
CREATE OR REPLACE FUNCTION require_read_committed(name text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE invalid_transaction_state USING
            MESSAGE = format('%s needs READ COMMITTED, but this transaction is %s',
                             name, upper(current_setting('transaction_isolation'))),
            HINT = 'use BEGIN ISOLATION LEVEL READ COMMITTED: the function must see what was committed while it waited for a lock';
    END IF;
END
$$;

-- functions/api/require_worker_name.sql
-- Refuses (22023) a name that no worker of another language can have. Names that start with weir_ are those of Weir's
-- own processes.
-- Cost: no table.
-- Callers: weir_claim, weir_heartbeat.
CREATE OR REPLACE FUNCTION require_worker_name(worker text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
BEGIN
    IF worker IS NULL OR worker !~ '^[[:alnum:]][[:alnum:]._-]{0,99}$' OR worker LIKE 'weir\_%' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'a worker name must have 1 to 100 letters, digits, ".", "_" and "-", and must not start with weir_';
    END IF;
END
$$;

-- functions/api/submit_options.sql
-- Checks the options of weir_submit:
--
-- - idempotency_key: 1 to 255 bytes.
-- - run_at: within 366 days; the past is now.
-- - priority: 1 (first) to 4.
--
-- asked_for is run_at as the caller wrote it, even if it has passed.
-- Errors: 22023 for anything else.
-- Cost: no table.
-- Callers: weir_submit.
CREATE OR REPLACE FUNCTION submit_options(options jsonb, OUT idempotency_key text, OUT run_at timestamptz, OUT asked_for timestamptz, OUT priority smallint)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET DateStyle = 'ISO, MDY'
AS $$
DECLARE
    known CONSTANT text[] := ARRAY['idempotency_key', 'priority', 'run_at'];
    unknown text;
BEGIN
    options := coalesce(nullif(options, 'null'), '{}');
    IF jsonb_typeof(options) <> 'object' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the options must be a JSON object';
    END IF;
    SELECT string_agg(k, ', ' ORDER BY k) INTO unknown FROM jsonb_object_keys(options) AS k WHERE k <> ALL (known);
    IF unknown IS NOT NULL THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('unknown options: %s', unknown),
            HINT = format('the options are %s', array_to_string(known, ', '));
    END IF;
    IF jsonb_typeof(options -> 'idempotency_key') NOT IN ('string', 'null')
       OR octet_length(options ->> 'idempotency_key') NOT BETWEEN 1 AND 255 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'idempotency_key must be text of 1 to 255 bytes';
    END IF;
    idempotency_key := options ->> 'idempotency_key';
    IF (options ->> 'priority') !~ '^[1-4]$' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'priority must be a number from 1 (first) to 4';
    END IF;
    priority := coalesce(options ->> 'priority', '1')::smallint;
    BEGIN
        run_at := (options ->> 'run_at')::timestamptz;
    EXCEPTION WHEN data_exception THEN
        RAISE invalid_parameter_value USING MESSAGE = 'run_at must be a time, such as 2027-01-31T08:00:00Z';
    END;
    IF NOT isfinite(run_at) OR run_at > clock_timestamp() + interval '366 days' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'run_at must be within 366 days';
    END IF;
    asked_for := run_at;
    IF run_at <= clock_timestamp() THEN
        run_at := NULL;
    END IF;
END
$$;

-- functions/api/weir_claim.sql
-- Starts attempts at the next available jobs of a queue, by priority and time. Skips jobs that other workers are
-- claiming. Commit before you start work, so that others see that the jobs run.
--
-- A claim registers the worker. Then call `weir_heartbeat` every two seconds: after ten seconds without a heartbeat, a
-- claim or a progress, others get the worker's jobs.
--
-- | parameter | |
-- |---|---|
-- | `queue` | one of the service's queues |
-- | `worker` | the process. No other process has the same name: 1 to 100 letters, digits, `.`, `_` and `-`, not starting with `weir_` |
-- | `most` | 1 to 1000 jobs. Default: 1 |
--
-- A job needs a slot if its arguments name a user. A job without a user (`user_id` absent, empty or not a text) needs
-- none. A paused queue returns no jobs.
--
-- Pass `created_at` to the functions that end the attempt. After a failover that lost commits, a new job may have the
-- id and the attempt of a lost one; its time differs. The clients of this repository pass it.
--
-- Errors: 22023 for invalid arguments.
--
-- Cost: one scan of River's index of available jobs, one update per job, and one write.
--
-- Callers: other languages, as role weir_worker.
CREATE OR REPLACE FUNCTION weir_claim(queue text, worker text, most int DEFAULT 1)
RETURNS TABLE (job_id bigint, attempt int, kind text, args jsonb, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
#variable_conflict use_column
BEGIN
    IF most IS NULL OR most NOT BETWEEN 1 AND 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a worker can claim 1 to 1000 jobs at once';
    END IF;
    PERFORM require_worker_name(worker);
    RETURN QUERY
    WITH picked AS MATERIALIZED (
        SELECT j.id
        FROM river_job j
        WHERE j.state = 'available' AND j.queue = weir_claim.queue AND j.scheduled_at <= clock_timestamp()
          AND is_service_kind(j.kind)
          AND NOT EXISTS (SELECT 1 FROM river_queue q
                          WHERE q.name IN (weir_claim.queue, '*') AND q.paused_at IS NOT NULL)
          AND ((jsonb_typeof(j.args -> 'user_id') IS DISTINCT FROM 'string' OR j.args ->> 'user_id' = '')
                   AND NOT EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id)
               OR EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id AND r.admitted_at IS NOT NULL)
               OR NOT (SELECT s.counts_slots FROM weir_settings s))
        ORDER BY j.priority, j.scheduled_at, j.id
        LIMIT most
        FOR UPDATE SKIP LOCKED
    )
    UPDATE river_job j
    SET state = 'running', attempt = j.attempt + 1, attempted_at = clock_timestamp(),
        attempted_by = (coalesce(j.attempted_by, '{}'))[greatest(coalesce(cardinality(j.attempted_by), 0) - 98, 1):] || worker
    FROM picked p
    WHERE j.id = p.id
    RETURNING j.id, j.attempt::int, j.kind, j.args, j.created_at;
    IF FOUND THEN
        PERFORM record_heartbeat(worker);
    END IF;
END
$$;

COMMENT ON FUNCTION weir_claim IS
    'starts attempts at the next jobs of a queue; commit before you work, so that others see that the jobs run';

-- functions/api/weir_complete.sql
-- Completes an attempt inside the caller's transaction: ends the job, charges it, and promotes the user's oldest
-- parked job. Workers are notified when you commit.
--
-- | parameter | |
-- |---|---|
-- | `output` | at most 4 MiB |
-- | `used` | what the job used, at most what it reserved. Default: everything it reserved |
-- | `created_at` | when the job was created, as `weir_claim` returned it. Another job with this id is fenced out. Default: not checked |
--
-- | outcome | |
-- |---|---|
-- | `done` | `charged` is the charge |
-- | `fenced_out` | this attempt is no longer the current one. Nothing was changed: roll back what the attempt did |
--
-- Errors: 22023 for invalid arguments; 25000 unless the isolation level is READ COMMITTED; 40001 when another
-- transaction has just moved the job to another holder (retry).
--
-- Cost: some five updates by key. It locks the user's account until the transaction ends, so call it last.
--
-- Callers: other languages, as role weir_worker; ledger/src/attempts/outstanding.rs. Rust settles groups by
-- ledger/src/settlement/transaction.rs; native/tests/suite/differential.rs compares the two.
CREATE OR REPLACE FUNCTION weir_complete(job_id bigint, attempt int, output jsonb DEFAULT NULL, used bigint DEFAULT NULL,
                              created_at timestamptz DEFAULT NULL, OUT outcome text, OUT charged bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- The function updates the counters itself, and turns the triggers off until it returns. A function owned by an
    -- ordinary role cannot have the setting in its definition.
    counters CONSTANT text := coalesce(current_setting('weir.counters', true), '');
    is_large CONSTANT boolean := coalesce(is_large_output(output), false);
    of_holder uuid;
BEGIN
    PERFORM require_read_committed('weir_complete');
    IF is_large AND octet_length(output::text) > 4194304 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the output is larger than 4 MiB',
            HINT = 'store it elsewhere, and complete the job with its location';
    END IF;
    IF used < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'used must be 0 or more',
            HINT = 'leave it out to charge the whole reservation';
    END IF;
    charged := 0;
    IF is_another_job(weir_complete.job_id, weir_complete.created_at) THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    -- Lock the holder first, as every transaction does. Then lock the job, so that no process takes over its attempt.
    of_holder := (lock_holder_of_job(weir_complete.job_id)).holder;
    PERFORM set_config('weir.counters', 'kept', true);
    -- As in River's JobCompleteTx, but only for the attempt that did the work.
    UPDATE river_job j
    SET state = 'completed', finalized_at = clock_timestamp(),
        metadata = j.metadata || jsonb_strip_nulls(jsonb_build_object('weir:used', weir_complete.used))
            || CASE WHEN output <> 'null' AND NOT is_large THEN jsonb_build_object('output', output) ELSE '{}' END,
        attempted_at = attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at)
    WHERE j.id = weir_complete.job_id AND j.attempt = weir_complete.attempt AND (j.state = 'running') IS TRUE
      AND is_service_kind(j.kind);
    IF FOUND THEN
        outcome := 'done';
        IF is_large THEN
            INSERT INTO job_outputs AS o (job_id, output) VALUES (weir_complete.job_id, weir_complete.output)
            ON CONFLICT (job_id) DO UPDATE SET output = excluded.output;
        END IF;
        charged := end_reservation(weir_complete.job_id, of_holder, true, weir_complete.used);
    ELSE
        outcome := 'fenced_out';
    END IF;
    PERFORM set_config('weir.counters', counters, true);
END
$$;

COMMENT ON FUNCTION weir_complete IS
    'completes and charges a job in the caller''s transaction, and promotes the next; outcome: done, fenced_out';

-- functions/api/weir_extend.sql
-- Reserves more for a running job in the windows of its reservation. Usage above the limit draws on grants first, and
-- then counts as overage up to the ceiling.
--
-- | parameter | |
-- |---|---|
-- | `more` | 1 to 10^15 |
-- | `created_at` | when the job was created, as `weir_claim` returned it. Another job with this id is fenced out. Default: not checked |
--
-- | outcome | |
-- |---|---|
-- | `extended` | `quota` is the new quota |
-- | `over_quota`, `too_large` | as for `weir_submit`. Nothing was changed |
-- | `fenced_out` | this attempt is no longer the current one. Nothing was changed |
--
-- Errors: 22023 for invalid arguments; 25000 for another isolation level than READ COMMITTED; P0001 when the user's
-- plan has no limits for the job's meter.
--
-- Cost: one lookup per window. It locks the user's account until the transaction ends: use a short transaction.
--
-- Callers: other languages, as role weir_worker; ledger/src/attempts/outstanding.rs. The one body of this rule.
CREATE OR REPLACE FUNCTION weir_extend(job_id bigint, attempt int, more bigint, created_at timestamptz DEFAULT NULL,
                            OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- The function updates the counters itself, and turns the triggers off until it returns. A function owned by an
    -- ordinary role cannot have the setting in its definition.
    counters CONSTANT text := coalesce(current_setting('weir.counters', true), '');
    locked record;
    r quota_reservations;
    account record;
    room record;
BEGIN
    PERFORM require_read_committed('weir_extend');
    IF more IS NULL OR more NOT BETWEEN 1 AND 1000000000000000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'more must be from 1 to 1000000000000000';
    END IF;
    IF is_another_job(weir_extend.job_id, weir_extend.created_at) THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    SELECT * INTO locked FROM lock_holder_of_job(weir_extend.job_id);
    SELECT q.* INTO r
    FROM quota_reservations q JOIN river_job j ON j.id = q.job_id
    WHERE q.job_id = weir_extend.job_id AND q.holder = locked.holder AND j.attempt = weir_extend.attempt
      AND is_service_kind(j.kind)
      AND ((j.state = 'running') IS TRUE
           OR (j.state = 'pending') IS TRUE
              AND EXISTS (SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by)))
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := CASE WHEN is_attempt_without_holder(weir_extend.job_id, weir_extend.attempt) THEN 'extended'
                        ELSE 'fenced_out' END;
        RETURN;
    END IF;
    IF r.user_id IS NULL THEN
        -- A client address has no quota.
        outcome := 'extended';
        RETURN;
    END IF;
    -- The windows that the reservation counts in, even if others are current now.
    SELECT clock.at, a.* INTO account
    FROM (SELECT * FROM holders k WHERE k.holder = r.holder AND k.event_type = r.event_type
          ORDER BY k.generation DESC LIMIT 1) h
    CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
    LEFT JOIN LATERAL account_of(h.user_id, h.event_type, h.has_grants, clock.at, r.period_start, r.windows, r.created_at) a
        ON true;
    IF account.slots IS NULL THEN
        PERFORM raise_no_limits(r.event_type);
    END IF;
    quota := quota_json(account.used, account.reserved, account.monthly_limit, account.period_end, account.from_grants,
                        account.granted, account.monthly_ceiling);
    SELECT * INTO room
    FROM room_for(more, account.spans, account.limits, account.ceilings, account.used_in, account.reserved_in, account.ends,
                  account.from_grants, account.granted);
    IF room.full_windows IS NOT NULL THEN
        outcome := 'over_quota';
        RETURN;
    ELSIF room.is_too_large THEN
        outcome := 'too_large';
        RETURN;
    END IF;
    outcome := 'extended';
    PERFORM set_config('weir.counters', 'kept', true);
    UPDATE quota_reservations q
    SET reserved_amount = q.reserved_amount + more, from_grants = q.from_grants + room.drawn, overage = q.overage + room.overage
    WHERE q.job_id = r.job_id;
    UPDATE submissions s SET reserved_amount = s.reserved_amount + more
    WHERE s.job_id = r.job_id;
    PERFORM reserve_in_windows(r.user_id, r.event_type, more, account.spans, account.starts, account.limits,
                               account.ceilings, account.used_in);
    IF room.drawn > 0 THEN
        PERFORM draw_grants(r.user_id, r.event_type, r.job_id, room.drawn, account.at, r.period_start);
    END IF;
    quota := quota_json(account.used, account.reserved + more, account.monthly_limit, account.period_end,
                        account.from_grants + room.drawn, account.granted - room.drawn, account.monthly_ceiling);
    PERFORM set_config('weir.counters', counters, true);
END
$$;

COMMENT ON FUNCTION weir_extend IS
    'reserves more for a running job; outcome: extended, over_quota, too_large, fenced_out';

-- functions/api/weir_fail.sql
-- Records a failed attempt as River does, inside the caller's transaction, and frees its slot.
--
-- | parameter | |
-- |---|---|
-- | `error` | the message. Its first 10 000 characters are stored |
-- | `retry_at` | the time of the next attempt, at least a second from now and within 366 days. Default: by the service's `retry`, else by River's policy |
-- | `created_at` | when the job was created, as `weir_claim` returned it. Another job with this id is fenced out. Default: not checked |
--
-- | outcome | |
-- |---|---|
-- | `retry` | the job keeps its quota and runs again |
-- | `discarded` | no attempts are left. Nothing is charged |
-- | `cancelled` | the job was cancelled. Nothing is charged |
-- | `fenced_out` | this attempt is no longer the current one. Nothing was changed |
--
-- Errors: as `weir_complete`.
--
-- Cost: as `weir_complete`, with the same lock.
--
-- Callers: other languages, as role weir_worker.
CREATE OR REPLACE FUNCTION weir_fail(job_id bigint, attempt int, error text, retry_at timestamptz DEFAULT NULL,
                          created_at timestamptz DEFAULT NULL, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    IF is_another_job(weir_fail.job_id, weir_fail.created_at)
        OR EXISTS (SELECT FROM river_job j WHERE j.id = weir_fail.job_id AND NOT is_service_kind(j.kind)) THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    outcome := fail_attempt(weir_fail.job_id, weir_fail.attempt, weir_fail.error, weir_fail.retry_at);
END
$$;

COMMENT ON FUNCTION weir_fail IS
    'records a failed attempt as River does and frees its slot; outcome: retry, discarded, cancelled, fenced_out';

-- functions/api/weir_heartbeat.sql
-- Keeps the running jobs of a worker that claims with `weir_claim`. Call it every two seconds, and commit. The first
-- call or claim registers the worker. A registered worker without a heartbeat, a claim or a progress report for ten
-- seconds is dead. `weir schedule` makes its jobs available to others, and its attempts are fenced out.
--
-- | parameter | |
-- |---|---|
-- | `worker` | the process, as in `weir_claim`. Each process has a different name |
--
-- Returns how many jobs the worker runs. Fewer than it works on: the others were taken over.
--
-- Errors: 22023 for an invalid name.
--
-- Cost: one write, and one index range over the running jobs.
--
-- Callers: other languages, as role weir_worker.
CREATE OR REPLACE FUNCTION weir_heartbeat(worker text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
BEGIN
    PERFORM require_worker_name(worker);
    PERFORM record_heartbeat(worker);
    RETURN (SELECT count(*) FROM river_job j
            WHERE j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] = worker);
END
$$;

COMMENT ON FUNCTION weir_heartbeat IS
    'keeps the running jobs of a worker; without it for ten seconds, others get them';

-- functions/api/weir_holder.sql
-- Returns the id of a subject in `users`, `holders` and all other tables, whether or not the subject has been seen. A
-- UUID, in any of its spellings, is its own id; another text has an id derived from it.
--
-- | parameter | |
-- |---|---|
-- | `subject` | 1 to 255 bytes without control characters, and not the id of a client address |
--
-- Errors: 22023 for an invalid subject.
--
-- Cost: one row of weir_settings.
-- Callers: weir_submit, weir_quota; other languages, as either role. Rust checks the subject in policy/src/subject.rs
-- and computes the id in ledger/src/holder.rs.
CREATE OR REPLACE FUNCTION weir_holder(subject text) RETURNS uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
DECLARE
    id CONSTANT uuid := uuid_of_subject(subject);
BEGIN
    IF subject IS NULL OR octet_length(convert_to(subject, 'UTF8')) NOT BETWEEN 1 AND 255
       OR subject ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a subject must have 1 to 255 bytes and no control characters';
    END IF;
    IF is_address_id(id) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a subject must not be the id of a client address';
    END IF;
    RETURN coalesce(id,
                    subject_id((SELECT s.address_namespace FROM weir_settings s), subject));
END
$$;

-- functions/api/weir_progress.sql
-- Records the progress of the current attempt, which the job's owner sees until the attempt ends. Call it in a
-- separate transaction: it becomes visible when you commit. It counts as a heartbeat of a worker that has registered.
--
-- | parameter | |
-- |---|---|
-- | `fraction` | 0 to 1 |
-- | `message` | at most 1000 bytes |
-- | `created_at` | when the job was created, as `weir_claim` returned it. Another job with this id is fenced out. Default: not checked |
--
-- Returns `done`, or `fenced_out` if this attempt is no longer the current one.
--
-- Errors: 22023 for invalid arguments.
--
-- Cost: one update by key, and at most each second one more. It locks this job's reservation, and
-- at most each second the worker's row in `processes`.
--
-- Callers: other languages, as role weir_worker. The body of this rule for handlers that answer later is
-- ledger/src/attempts/sql/record_progress.sql.
CREATE OR REPLACE FUNCTION weir_progress(job_id bigint, attempt int, fraction double precision, message text DEFAULT NULL,
                              created_at timestamptz DEFAULT NULL, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- The function updates the counters itself, and turns the triggers off until it returns. A function owned by an
    -- ordinary role cannot have the setting in its definition.
    counters CONSTANT text := coalesce(current_setting('weir.counters', true), '');
BEGIN
    IF fraction IS NULL OR fraction NOT BETWEEN 0 AND 1 OR octet_length(message) > 1000 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'progress needs a fraction from 0 to 1 and a message of at most 1000 bytes';
    END IF;
    IF is_another_job(weir_progress.job_id, weir_progress.created_at) THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    PERFORM set_config('weir.counters', 'kept', true);
    UPDATE quota_reservations r
    SET progress = jsonb_build_object('attempt', attempt, 'fraction', fraction, 'message', weir_progress.message)
    WHERE r.job_id = weir_progress.job_id
      AND EXISTS (SELECT 1 FROM river_job j
                  WHERE j.id = weir_progress.job_id AND j.attempt = weir_progress.attempt AND (j.state = 'running') IS TRUE
                    AND is_service_kind(j.kind));
    outcome := CASE WHEN FOUND OR is_attempt_without_holder(weir_progress.job_id, weir_progress.attempt) THEN 'done'
                    ELSE 'fenced_out' END;
    IF outcome = 'done' THEN
        UPDATE processes p SET beat_at = clock_timestamp()
        FROM river_job j
        WHERE j.id = weir_progress.job_id AND p.client_id = j.attempted_by[array_upper(j.attempted_by, 1)]
          AND p.client_id NOT LIKE 'weir\_%' AND p.beat_at < clock_timestamp() - interval '1 second';
    END IF;
    PERFORM set_config('weir.counters', counters, true);
END
$$;

COMMENT ON FUNCTION weir_progress IS
    'records the progress of an attempt for the job''s owner; outcome: done, fenced_out';

-- functions/api/weir_quota.sql
-- Checks whether a submission would be accepted now. Reserves and writes nothing, takes no lock and creates no user, so
-- another submission may take the room in between.
--
-- | parameter | |
-- |---|---|
-- | `subject` | the user: see [identities](../how-to/identities.md). An unknown user has the default plan |
-- | `service` | the service's name |
-- | `amount` | the maximum amount that the job may use, 0 to 10^15. Default: the service's. Required if the service has no fixed amount |
--
-- | outcome | |
-- |---|---|
-- | `admitted` | the job would get a slot |
-- | `parked` | the job would be accepted and wait for a slot |
-- | `over_quota`, `too_large`, `too_many_waiting` | as for `weir_submit` |
--
-- `quota` is the current quota, without the amount. For `over_quota`, `quota.windows` lists the full windows.
--
-- Errors: 22023 for invalid arguments.
--
-- Cost: some eight look-ups by key.
-- Callers: other languages, as role weir_submitter. The API calls check_submission().
CREATE OR REPLACE FUNCTION weir_quota(subject text, service text, amount bigint DEFAULT NULL, OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    this_holder CONSTANT uuid := weir_holder(weir_quota.subject);
    made weir_services;
BEGIN
    SELECT * INTO made FROM weir_services s WHERE s.name = weir_quota.service;
    IF NOT FOUND THEN
        PERFORM raise_no_service(weir_quota.service);
    END IF;
    IF weir_quota.amount IS NULL AND made.amount IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = format('the service %s has no fixed amount; pass an amount', made.name);
    END IF;
    SELECT c.outcome, c.quota INTO outcome, quota
    FROM check_submission(this_holder, this_holder, made.event_type, amount_of(made, '{}', weir_quota.amount)) c;
END
$$;

COMMENT ON FUNCTION weir_quota IS
    'checks whether a submission would be accepted now; outcome: admitted, parked, over_quota, too_large, too_many_waiting';

-- functions/api/weir_submit.sql
-- Submits a job of a service in `weir.toml` for a user, inside the caller's transaction.
--
-- | parameter | |
-- |---|---|
-- | `subject` | the user: see [identities](../how-to/identities.md). A new user is created on the default plan |
-- | `service` | the service's name |
-- | `args` | a JSON object of at most 256 KiB. Its `user_id` is set |
-- | `amount` | the maximum amount that the job may use, 0 to 10^15. Default: set by the service's handler |
-- | `options` | a JSON object with the members below. Another member is an error |
--
-- | option | |
-- |---|---|
-- | `idempotency_key` | 1 to 255 bytes. The same submission with the same key within 24 hours returns the same job. Another `run_at` or `priority` is another submission. Keys of the HTTP API are compared differently: retry through the interface that you used first |
-- | `run_at` | a time within 366 days. The job reserves its quota now and asks for a slot then. A time in the past means now |
-- | `priority` | 1, the first, to 4: River's priority within the lane |
--
-- | outcome | |
-- |---|---|
-- | `admitted` | the job has a slot. Workers are notified when you commit |
-- | `parked` | accepted. The job waits for a slot or for `run_at` |
-- | `repeated` | `idempotency_key` created this job before |
-- | `folded` | the user has an unfinished job that equals this one by `unique_by`. Nothing was reserved |
-- | `over_quota` | the quota has no room. Nothing was written. `quota.windows` lists the full windows |
-- | `too_large` | used, reserved and requested would exceed 9223372036854775807. Nothing was written |
-- | `too_many_waiting` | the user has `max_waiting` jobs that wait for a slot, their time or a retry. Nothing was written |
-- | `key_reused` | `idempotency_key` belongs to another submission. Nothing was written |
--
-- Errors: 22023 for invalid arguments. 22003 for a number in a `unique_by` member that no double can hold (1e400).
-- 25000 for another isolation level than READ COMMITTED. P0001 when the user's plan has no limits for the service's
-- meter. A `unique_by` member may be nested 100 levels deep.
--
-- Cost: some ten lookups by key and five writes. It locks the user's account for the service's meter until the
-- transaction ends, so the user's other submissions and settlements wait.
--
-- Callers: other languages, as role weir_submitter. Rust decides the same in ledger/src/reservation/decide.rs and
-- policy/src/admission.rs, for groups; native/tests/suite/differential.rs compares the two. The states in which a
-- unique key counts are LIVE_STATES of ledger/src/unique_key.rs.
CREATE OR REPLACE FUNCTION weir_submit(subject text, service text, args jsonb, amount bigint DEFAULT NULL, options jsonb DEFAULT '{}',
                            OUT outcome text, OUT job_id bigint, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- The function updates the counters itself, and turns the triggers off until it returns. A function owned by an
    -- ordinary role cannot have the setting in its definition.
    counters CONSTANT text := coalesce(current_setting('weir.counters', true), '');
    this_holder CONSTANT uuid := weir_holder(weir_submit.subject);
    is_uuid CONSTANT boolean := uuid_of_subject(weir_submit.subject) IS NOT NULL;
    want record;
    made weir_services;
    account record;
    earlier record;
    added bigint;
    hash bytea;
    key bytea;
    admits boolean;
    room record;
    lane_queue text;
BEGIN
    PERFORM require_read_committed('weir_submit');
    SELECT * INTO want FROM submit_options(weir_submit.options);
    SELECT * INTO made FROM weir_services s WHERE s.name = weir_submit.service;
    IF NOT FOUND THEN
        PERFORM raise_no_service(weir_submit.service);
    END IF;
    IF jsonb_typeof(args) IS DISTINCT FROM 'object' OR octet_length(args::text) > 262144 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the arguments must be a JSON object of at most 256 KiB';
    END IF;
    -- As in a token of the same user.
    args := args || jsonb_build_object(
        'user_id', CASE WHEN is_uuid THEN this_holder::text ELSE weir_submit.subject END);
    added := amount_of(made, args, weir_submit.amount);
    key := unique_key_of(this_holder, made.kind, args, made.unique_by);

    PERFORM lock_account(this_holder, made.event_type, CASE WHEN NOT is_uuid THEN weir_submit.subject END);
    SELECT h.slots_in_use, h.parked, clock.at, a.*,
           slots_in_force(h.user_id, a.tier, coalesce(a.slots, raise_no_limits(made.event_type)), a.own_slots) AS slots_now
    INTO account
    FROM (SELECT * FROM holders k WHERE k.holder = this_holder AND k.event_type = made.event_type
          ORDER BY k.generation DESC LIMIT 1) h
    CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) clock
    LEFT JOIN LATERAL account_of(h.user_id, h.event_type, h.has_grants, clock.at) a ON true;
    quota := quota_json(account.used, account.reserved, account.monthly_limit, account.period_end, account.from_grants,
                        account.granted, account.monthly_ceiling);
    IF want.idempotency_key IS NOT NULL THEN
        hash := sha256(convert_to(made.name, 'UTF8') || '\x00' || convert_to(args::text, 'UTF8')
                       || convert_to(concat_ws('/', coalesce(weir_submit.amount::text, ''), want.priority,
                                               extract(epoch FROM want.asked_for)), 'UTF8'));
        SELECT s.job_id, s.request_hash INTO earlier
        FROM submissions s
        WHERE s.holder = this_holder AND s.idempotency_key = want.idempotency_key
          AND s.created_at > now() - key_lifetime();
        IF FOUND AND earlier.request_hash = hash THEN
            outcome := 'repeated';
            job_id := earlier.job_id;
            RETURN;
        ELSIF FOUND THEN
            outcome := 'key_reused';
            quota := NULL;
            RETURN;
        END IF;
        -- Keeps a key that another transaction has written since the look-up.
        UPDATE submissions s SET idempotency_key = NULL
        WHERE s.holder = this_holder AND s.idempotency_key = want.idempotency_key
          AND s.created_at <= now() - key_lifetime();
    END IF;
    IF key IS NOT NULL THEN
        SELECT j.id INTO job_id
        FROM river_job j
        WHERE j.unique_key = key AND j.unique_key IS NOT NULL AND j.unique_states IS NOT NULL
          AND river_job_state_in_bitmask(j.unique_states, j.state);
        IF FOUND THEN
            outcome := 'folded';
            RETURN;
        END IF;
    END IF;

    SELECT * INTO room
    FROM room_for(added, account.spans, account.limits, account.ceilings, account.used_in, account.reserved_in, account.ends,
                  account.from_grants, account.granted);
    outcome := submission_outcome(this_holder, made.event_type, want.run_at IS NOT NULL, account.slots_in_use, account.slots_now,
                                  account.parked, account.attributes, room.full_windows, room.is_too_large);
    IF outcome = 'over_quota' THEN
        quota := quota || jsonb_build_object('windows', room.full_windows);
    END IF;
    IF outcome NOT IN ('admitted', 'parked') THEN
        RETURN;
    END IF;
    admits := outcome = 'admitted';
    lane_queue := made.name || '_' || coalesce(account.lane, 'default');
    job_id := nextval('river_job_id_seq');
    INSERT INTO submissions (job_id, holder, user_id, event_type, reserved_amount, idempotency_key, request_hash)
    VALUES (weir_submit.job_id, this_holder, this_holder, made.event_type, added, want.idempotency_key, hash)
    ON CONFLICT (holder, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        -- Another submission took the key after the look-up. It holds another meter's lock, so it ran at the same time.
        outcome := 'key_reused';
        job_id := NULL;
        quota := NULL;
        RETURN;
    END IF;
    quota := quota_json(account.used, account.reserved + added, account.monthly_limit, account.period_end,
                        account.from_grants + room.drawn, account.granted - room.drawn, account.monthly_ceiling);
    PERFORM set_config('weir.counters', 'kept', true);
    INSERT INTO river_job (id, args, kind, max_attempts, metadata, priority, queue, state, scheduled_at, tags,
                           unique_key, unique_states)
    VALUES (weir_submit.job_id, args, made.kind, made.max_attempts, '{}', want.priority, lane_queue,
            (CASE WHEN admits THEN 'available' ELSE 'pending' END)::river_job_state,
            coalesce(want.run_at, clock_timestamp()), '{}', key, CASE WHEN key IS NOT NULL THEN B'11110001' END);
    INSERT INTO quota_reservations (user_id, event_type, reserved_amount, job_id, expires_at, holder, period_start,
                                    windows, created_at, admitted_at, parked_at, due_at, from_grants, overage)
    SELECT this_holder, made.event_type, added, weir_submit.job_id, now() + s.reservation_ttl, this_holder,
           account.period_start, account.counted, account.at,
           CASE WHEN admits THEN clock_timestamp() END,
           CASE WHEN NOT admits AND want.run_at IS NULL THEN clock_timestamp() END,
           want.run_at, room.drawn, room.overage
    FROM weir_settings s;
    UPDATE holders h
    SET slots_in_use = h.slots_in_use + admits::int,
        parked = h.parked + (NOT admits)::int,
        parked_from = least(h.parked_from, weir_submit.job_id),
        granted_slots = CASE WHEN admits THEN account.slots_now ELSE h.granted_slots END,
        changes = h.changes + 1
    WHERE want.run_at IS NULL
      AND h.ctid = (SELECT k.ctid FROM holders k WHERE k.holder = this_holder AND k.event_type = made.event_type
                    ORDER BY k.generation DESC LIMIT 1);
    IF added > 0 THEN
        PERFORM reserve_in_windows(this_holder, made.event_type, added, account.spans, account.starts, account.limits,
                                   account.ceilings, account.used_in);
    END IF;
    IF room.drawn > 0 THEN
        PERFORM draw_grants(this_holder, made.event_type, job_id, room.drawn, account.at, account.period_start);
    END IF;
    IF admits THEN
        PERFORM wake_queue(lane_queue);
    END IF;
    PERFORM set_config('weir.counters', counters, true);
END
$$;

COMMENT ON FUNCTION weir_submit IS
    'submits a job in the caller''s transaction; outcome: admitted, parked, repeated, folded, over_quota, too_large, too_many_waiting, key_reused';

-- functions/counters/require_meters.sql
-- Refuses (23503) names that are not a meter, because nothing would count them. Called only for writes by hand, so that
-- reservations do not pay for it.
-- Cost: one look-up by key a name.
-- Callers: the triggers that count.
CREATE OR REPLACE FUNCTION require_meters(names text[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    unknown text := (SELECT n FROM unnest(names) AS n WHERE NOT EXISTS (SELECT 1 FROM meters m WHERE m.name = n) LIMIT 1);
BEGIN
    IF unknown IS NOT NULL THEN
        RAISE foreign_key_violation USING
            MESSAGE = format('unknown meter %s', unknown),
            HINT = 'the table meters lists the meters; run `weir migrate` to add those of weir.toml';
    END IF;
END
$$;

-- functions/events/deliver.sql
-- Inserts one job per event and webhook. A delivery has ten attempts over three days. The body is stored as the signed
-- text. As JSON, River's GIN index would index each member, again at every change of state.
-- Cost: one job a webhook and event.
-- Callers: emit, emit_job_ends; ledger/src/control/deliveries.rs.
CREATE OR REPLACE FUNCTION deliver(receivers uuid[], of_holders uuid[], ids text[], bodies text[])
RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    delivery record;
BEGIN
    FOR delivery IN
        WITH inserted AS (
            INSERT INTO river_job (args, kind, max_attempts, metadata, priority, queue, state, scheduled_at, tags)
            SELECT jsonb_strip_nulls(jsonb_build_object(
                       'webhook', d.webhook, 'holder', d.holder, 'event', d.id, 'body', d.body)),
                   'weir:webhook', 10, '{}', 1, webhook_queue(d.webhook), 'available', now(), '{}'
            FROM unnest(receivers, of_holders, ids, bodies) AS d (webhook, holder, id, body)
            RETURNING queue
        )
        SELECT DISTINCT queue FROM inserted
    LOOP
        PERFORM wake_queue(delivery.queue);
    END LOOP;
END
$$;

-- functions/events/emit.sql
-- Emits events to all webhooks that subscribe to their types. An event has the same id for every webhook. percents: the
-- thresholds of quota.threshold events; each webhook chooses its own.
-- Cost: a scan of webhooks, a small table; then as deliver().
-- Callers: the functions of this folder.
CREATE OR REPLACE FUNCTION emit(types text[], of_holders uuid[], details jsonb[], percents smallint[] DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    subscribed record;
BEGIN
    WITH events AS MATERIALIZED (
        SELECT e.type, e.holder, e.percent,
               jsonb_build_object('id', 'evt_' || replace(gen_random_uuid()::text, '-', ''), 'type', e.type,
                                  'timestamp', utc_text(clock_timestamp()), 'data', e.data) AS event
        FROM unnest(types, of_holders, details, percents) AS e (type, holder, data, percent)
    )
    SELECT array_agg(w.id) AS webhooks, array_agg(e.holder) AS holders, array_agg(e.event ->> 'id') AS ids,
           array_agg(e.event::text) AS bodies
    INTO subscribed
    FROM events e
    JOIN active_webhooks w ON e.type = ANY (w.events)
        AND (e.percent IS NULL OR e.percent = ANY (w.thresholds));
    IF subscribed.webhooks IS NOT NULL THEN
        PERFORM deliver(subscribed.webhooks, subscribed.holders, subscribed.ids, subscribed.bodies);
    END IF;
END
$$;

-- functions/events/emit_renewals.sql
-- Emits quota.renewed for ended windows in which a threshold was reached, and deletes their rows. Handles at most 1000
-- per call and returns the number. Only one caller may run at a time.
-- Cost: one look-up by index when no window has ended; else one account_of() a window.
-- Callers: ledger/src/control/webhooks.rs.
CREATE OR REPLACE FUNCTION emit_renewals() RETURNS bigint LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    ended record;
BEGIN
    -- Returns early when no window has ended: most entries of the index are in the future.
    IF NOT EXISTS (SELECT FROM quota_thresholds q WHERE q.ends_at <= now()) THEN
        RETURN 0;
    END IF;
    PERFORM FROM weir_locks l WHERE l.name = 'renewals' FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    WITH due AS MATERIALIZED (
        SELECT DISTINCT q.user_id, q.event_type, q.span, q.period_start
        FROM (SELECT * FROM quota_thresholds t WHERE t.ends_at <= now() ORDER BY t.ends_at LIMIT 1000) q
    ), gone AS (
        DELETE FROM quota_thresholds q USING due d
        WHERE q.user_id = d.user_id AND q.event_type = d.event_type AND q.span = d.span AND q.period_start = d.period_start
        RETURNING q.user_id, q.event_type, q.span, q.period_start
    ), windows AS (
        SELECT g.user_id, g.event_type, g.span, g.period_start, count(*) AS n FROM gone g GROUP BY 1, 2, 3, 4
    )
    SELECT coalesce(sum(w.n), 0)::bigint AS n,
           array_agg('quota.renewed'::text) FILTER (WHERE l.span IS NOT NULL) AS types,
           array_agg(w.user_id) FILTER (WHERE l.span IS NOT NULL) AS holders,
           array_agg(jsonb_build_object(
               'subject', subject_of(w.user_id), 'holder', w.user_id, 'meter', w.event_type, 'window', w.span,
               'used', l.used, 'limit', l.most, 'period_start', utc_text(l.period_start),
               'reset_at', utc_text(l.ends_at))) FILTER (WHERE l.span IS NOT NULL) AS details
    INTO ended
    FROM windows w
    LEFT JOIN LATERAL (
        SELECT * FROM windows_with_limits(w.user_id, w.event_type, clock_timestamp()) k WHERE k.span = w.span OFFSET 0
    ) l ON true;
    IF ended.types IS NOT NULL THEN
        PERFORM emit(ended.types, ended.holders, ended.details);
    END IF;
    RETURN ended.n;
END
$$;

-- functions/events/emit_thresholds.sql
-- Emits quota.threshold for each threshold that a user has reached in the current month or day and that was not emitted
-- yet. After a limit is raised, reaching the threshold again emits it again. Hours and minutes have no thresholds.
-- Cost: a scan of webhooks, one account_of(), and a write for each threshold that was reached.
-- Callers: emit_override_thresholds, emit_plan_change, emit_usage.
CREATE OR REPLACE FUNCTION emit_thresholds(of_user uuid, meter text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    reached record;
BEGIN
    WITH thresholds AS (
        SELECT DISTINCT t.percent
        FROM active_webhooks w CROSS JOIN unnest(w.thresholds) AS t (percent)
        WHERE w.has_thresholds
    ), first_time AS (
        INSERT INTO quota_thresholds AS q (user_id, event_type, span, period_start, percent, used, most, ends_at)
        SELECT of_user, meter, w.span, w.period_start, t.percent, w.used, w.most, w.ends_at
        FROM windows_with_limits(of_user, meter, clock_timestamp()) w
        JOIN thresholds t ON w.used::numeric * 100 >= w.most::numeric * t.percent
        ORDER BY w.span, t.percent
        ON CONFLICT (user_id, event_type, span, period_start, percent) DO UPDATE
            SET used = excluded.used, most = excluded.most, ends_at = excluded.ends_at, reached_at = clock_timestamp()
            WHERE q.most < excluded.most
        RETURNING *
    )
    SELECT array_agg('quota.threshold'::text) AS types, array_agg(of_user) AS holders,
           array_agg(n.percent ORDER BY n.span, n.percent) AS percents,
           array_agg(jsonb_build_object(
               'subject', subject_of(of_user), 'holder', of_user, 'meter', meter, 'window', n.span,
               'percent', n.percent, 'used', n.used, 'limit', n.most,
               'period_start', utc_text(n.period_start), 'reset_at', utc_text(n.ends_at)
           ) ORDER BY n.span, n.percent) AS details
    INTO reached
    FROM first_time n;
    IF reached.types IS NOT NULL THEN
        PERFORM emit(reached.types, reached.holders, reached.details, reached.percents);
    END IF;
END
$$;

-- functions/events/webhook_queue.sql
-- The queue of a webhook. Each webhook has its own, so that a slow receiver does not delay others.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: deliver; ledger/src/control/deliveries.rs, ledger/src/control/sql/cancel_deliveries.sql, ledger/src/control/sql/replay.sql,
-- ledger/src/control/sql/replay_undelivered.sql, ledger/src/control/sql/webhooks.sql.
CREATE OR REPLACE FUNCTION webhook_queue(webhook uuid) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT 'weir_webhook_' || replace(webhook::text, '-', '')
$$;

-- functions/maintenance/current_timeline.sql
-- The server's timeline; null on a replica, and on servers that do not report it.
-- Cost: none: the server has it in memory.
-- Callers: note_log_timeline; ledger/src/control/sql/usage_place.sql, ledger/src/control/usage_feed.rs,
-- ledger/src/database/connect.rs, ledger/src/maintenance/note_timeline.sql.
CREATE OR REPLACE FUNCTION current_timeline() RETURNS int
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NULL;
    END IF;
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
EXCEPTION
    WHEN feature_not_supported OR insufficient_privilege OR undefined_function OR raise_exception THEN
        RETURN NULL;
END
$$;

-- functions/river/attempt_error.sql
-- An entry of river_job.errors, as River's clients write it: the attempt that ended at this time, and why.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: fail_attempt; ledger/src/attempts/sql/requeue_lost.sql, ledger/src/reconciliation/sql/take_over.sql.
CREATE OR REPLACE FUNCTION attempt_error(attempt int, at timestamptz, error text) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('at', utc_text(at), 'attempt', attempt, 'error', error, 'trace', '')
$$;

-- functions/river/attempt_started_at.sql
-- When an attempt started. River's leader may be another program's client, which rescues a job as stuck by its
-- attempted_at. A process therefore moves attempted_at of long attempts forward, and stores the true start in the
-- metadata with the attempt's claim.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: weir_complete, fail_attempt; ledger/src/audit/sql/i2_running.sql, i5_ownerless.sql and i5_unheld.sql,
-- ledger/src/read/sql/job_details.sql and job_view.sql, ledger/src/reconciliation/sql/keep_finished.sql,
-- ledger/src/settlement/sql/complete.sql.
CREATE OR REPLACE FUNCTION attempt_started_at(metadata jsonb, attempt smallint, attempted_by text[], attempted_at timestamptz)
RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN metadata #>> '{weir:started,claim}' = claim_of(attempt, attempted_by)
                THEN (metadata #>> '{weir:started,at}')::timestamptz
                ELSE attempted_at END
$$;

-- functions/river/claim_of.sql
-- Identifies an attempt at a job. The attempt's number is not enough: after a process dies, its attempt starts again
-- under the same number.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: attempt_started_at, outstanding_answers, outstanding_jobs; claimed.sql, await_answer.sql, refresh.sql,
-- end_of_attempt.sql, record_progress.sql, resume.sql, snooze.sql and requeue_lost.sql of ledger/src/attempts/sql/.
CREATE OR REPLACE FUNCTION claim_of(attempt smallint, attempted_by text[]) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT attempt::text || '.' || coalesce(cardinality(attempted_by), 0)::text
$$;

-- functions/river/error_of.sql
-- A job's error as its owner sees it. Omits the error that River reports for every job cancelled while it ran, because
-- the state shows that.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: ledger/src/read/sql/failures.sql, ledger/src/read/sql/job_view.sql,
-- ledger/src/reconciliation/sql/keep_finished.sql.
CREATE OR REPLACE FUNCTION error_of(metadata jsonb, errors jsonb[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(reason_of(metadata, errors),
                    nullif(errors[array_upper(errors, 1)] ->> 'error', 'JobCancelError: job cancelled remotely'))
$$;

-- functions/river/go_json.sql
-- JSON in the format of Go's encoder, for unique keys: keys in byte order, no spaces, the shortest form of numbers.
-- depth: the nesting level. Rust: the crate riverqueue.
-- Errors: 22023 for more than 101 levels (unique_key_of's object and its members); 22003 for a number outside the range
-- of a double.
-- Cost: no table.
-- Callers: unique_key_of.
CREATE OR REPLACE FUNCTION go_json(value jsonb, depth int) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET extra_float_digits = 1
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
DECLARE
    literal text;
BEGIN
    IF depth > 100 AND jsonb_typeof(value) IN ('object', 'array') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a member of unique_by must be nested at most 100 deep';
    END IF;
    CASE jsonb_typeof(value)
        WHEN 'object' THEN
            RETURN '{' || coalesce((
                SELECT string_agg(go_json(to_jsonb(m.key), depth) || ':' || go_json(m.value, depth + 1), ',' ORDER BY m.key COLLATE "C")
                FROM jsonb_each(value) m), '') || '}';
        WHEN 'array' THEN
            RETURN '[' || coalesce((
                SELECT string_agg(go_json(e.value, depth + 1), ',' ORDER BY e.n)
                FROM jsonb_array_elements(value) WITH ORDINALITY e (value, n)), '') || ']';
        WHEN 'string' THEN
            literal := replace(replace(replace(value::text, '<', '\u003c'), '>', '\u003e'), '&', '\u0026');
            RETURN replace(replace(literal, U&'\2028', '\u2028'), U&'\2029', '\u2029');
        WHEN 'number' THEN
            IF scale(value::numeric) = 0
               AND value::numeric BETWEEN -9223372036854775808 AND 18446744073709551615 THEN
                RETURN value::text;
            END IF;
            -- Half of the smallest double. A smaller number is 0 as a double, and PostgreSQL's conversion refuses it.
            IF abs(value::numeric) <= 2.47032822920623272088e-324 THEN
                RETURN '0';
            END IF;
            literal := (value::numeric::float8)::text;
            IF literal::numeric = 0 OR abs(literal::numeric) >= 1e-6 AND abs(literal::numeric) < 1e21 THEN
                RETURN trim_scale(literal::numeric)::text;
            END IF;
            RETURN regexp_replace(literal, 'e([+-])0(\d)$', 'e\1\2');
        ELSE
            RETURN value::text;
    END CASE;
END
$$;

-- functions/river/is_another_job.sql
-- Whether the job with this id was created at a different time than the caller expects. After a failover that lost
-- commits, a new job may have the id of a lost one. False when created_at is null or the job does not exist.
-- Cost: one look-up by key.
-- Callers: weir_complete, weir_fail, weir_progress, weir_extend.
CREATE OR REPLACE FUNCTION is_another_job(job_id bigint, created_at timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN is_another_job.created_at IS NOT NULL
       AND EXISTS (SELECT 1 FROM river_job j
                   WHERE j.id = is_another_job.job_id AND j.created_at <> is_another_job.created_at);
END
$$;

-- functions/river/is_large_output.sql
-- Whether an output is stored in job_outputs and not in the job's metadata, where River indexes everything.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: weir_complete; ledger/src/settlement/sql/complete.sql.
CREATE OR REPLACE FUNCTION is_large_output(output jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT octet_length(output::text) > 4096
$$;

-- functions/river/may_be_pending.sql
-- Whether a job may become pending: its unique key, if it has one, counts while it is pending. Otherwise another job
-- could take the key, and then this one could not become available again.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: ledger/src/attempts/sql/await_answer.sql, ledger/src/reservation/sql/late_job.sql,
-- ledger/src/reservation/sql/park_backlog.sql, ledger/src/settlement/sql/park_due.sql.
CREATE OR REPLACE FUNCTION may_be_pending(unique_key bytea, unique_states bit) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT unique_key IS NULL OR unique_states IS NULL OR river_job_state_in_bitmask(unique_states, 'pending')
$$;

-- functions/river/output_of.sql
-- A job's output, from either place where it may be stored.
-- Cost: one look-up by key.
-- Callers: ledger/src/read/jobs.rs.
CREATE OR REPLACE FUNCTION output_of(job_id bigint) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN coalesce(
        (SELECT j.metadata -> 'output' FROM river_job j WHERE j.id = output_of.job_id),
        (SELECT o.output FROM job_outputs o WHERE o.job_id = output_of.job_id),
        (SELECT f.output FROM finished_jobs f WHERE f.job_id = output_of.job_id));
END
$$;

-- functions/river/outstanding_answers.sql
-- Returns the attempt's deadline if the job is pending and its answer is outstanding; otherwise no row. Such an attempt
-- counts as running. Compares the claim, because the row may belong to an earlier attempt. outstanding_jobs() lists all
-- of them.
--
-- A function in FROM, not STRICT and without SET, so that the planner inlines it. It does not inline a function that
-- returns a value and contains a subquery.
-- Cost: one look-up by key.
-- Callers: weir_extend; ledger/src/audit/sql/i2_running.sql, ledger/src/audit/sql/i5_unanswered.sql,
-- ledger/src/audit/sql/i5_unheld.sql, ledger/src/control/sql/cancel_waiting.sql, ledger/src/read/sql/may_run.sql,
-- ledger/src/read/sql/job_details.sql, ledger/src/read/sql/job_view.sql, ledger/src/reconciliation/sql/cancel_abandoned.sql.
CREATE OR REPLACE FUNCTION outstanding_answers(job bigint, attempt smallint, attempted_by text[])
RETURNS TABLE (deadline_at timestamptz)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT o.deadline_at FROM outstanding_attempts o
    WHERE o.job_id = job AND o.claim = claim_of(attempt, attempted_by)
$$;

-- functions/river/outstanding_jobs.sql
-- The jobs of attempts with an outstanding answer. They are pending, and count as running. outstanding_answers() checks
-- one job by the same rule.
-- A function and not a view, because PostgreSQL refuses to change the type of a column that a view uses, and the columns
-- are River's. One SELECT, not STRICT and without SET, so that the planner inlines it.
-- Cost: reads all outstanding attempts, with one look-up by key each.
-- Callers: ledger/src/read/sql/busiest_holders.sql, ledger/src/read/sql/holder_slots.sql,
-- ledger/src/read/sql/lane_jobs.sql, ledger/src/read/sql/lane_waiting.sql, ledger/src/read/sql/plan_jobs.sql.
CREATE OR REPLACE FUNCTION outstanding_jobs() RETURNS TABLE (job_id bigint, queue text)
LANGUAGE sql STABLE ROWS 10 AS $$
    SELECT j.id, j.queue
    FROM outstanding_attempts o
    JOIN river_job j ON j.id = o.job_id
    WHERE j.state = 'pending' AND o.claim = claim_of(j.attempt, j.attempted_by)
$$;

-- functions/river/queue_in_lane.sql
-- The queue of a promoted job. Only queues of Weir's lanes change: another client may have a queue x_default.
-- Cost: a scan of weir_services, which has one row a service.
-- Callers: promote_parked.
CREATE OR REPLACE FUNCTION queue_in_lane(queue text, lane text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    service text;
BEGIN
    SELECT s.name INTO service FROM weir_services s
    WHERE queue_in_lane.queue IN (s.name || '_priority', s.name || '_default');
    RETURN coalesce(service || '_' || lane, queue);
END
$$;

-- functions/river/reason_of.sql
-- The reason a handler gave when it discarded a job, unless a later attempt failed differently. Replaces River's error,
-- which only reports that the worker gave up.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: emit_job_ends, error_of.
CREATE OR REPLACE FUNCTION reason_of(metadata jsonb, errors jsonb[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN CASE WHEN metadata ->> 'weir:reason_attempt' ~ '^[0-9]{1,5}$'
                          THEN (metadata ->> 'weir:reason_attempt')::int
                               >= coalesce((errors[array_upper(errors, 1)] ->> 'attempt')::int, 0)
                          ELSE true END
                THEN metadata ->> 'weir:reason' END
$$;

-- functions/river/retry_pause.sql
-- The seconds until the next attempt: by the service's retry policy, else River's, spread by 10 %.
-- errors: how many attempts failed before this one. Rust computes the same in native/src/work/retry.rs.
-- Cost: a scan of weir_services, which has one row a service.
-- Callers: fail_attempt.
CREATE OR REPLACE FUNCTION retry_pause(job_kind text, errors int) RETURNS double precision
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN coalesce(
        (SELECT least(s.retry_base * power(s.retry_factor, least(errors, 1000))
                          * power(least(errors, 1000) + 1, s.retry_power), s.retry_max)
         FROM weir_services s WHERE s.kind = job_kind AND s.retry_base IS NOT NULL LIMIT 1),
        power(least(errors, 1000) + 1, 4)) * (0.9 + 0.2 * random());
END
$$;

-- functions/river/river_channel.sql
-- The name of a notification channel. River's clients listen on channels named after the schema of River's tables.
-- `weir migrate` replaces public with that schema's name, so that notifications need no look-up.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: wake_queue.
CREATE OR REPLACE FUNCTION river_channel(topic text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT 'public.' || topic
$$;

-- functions/river/state_after_failure.sql
-- The state of a job after a failed or lost attempt: cancelled when its cancellation was requested, discarded without
-- attempts left, else the state `again`.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: fail_attempt; ledger/src/attempts/sql/requeue_lost.sql, ledger/src/reconciliation/sql/take_over.sql.
CREATE OR REPLACE FUNCTION state_after_failure(metadata jsonb, attempt int, max_attempts int, again text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN metadata ? 'cancel_attempted_at' THEN 'cancelled'
                WHEN attempt >= max_attempts THEN 'discarded'
                ELSE again END
$$;

-- functions/river/unique_key_of.sql
-- The unique key of the holder's job by these members of its arguments; null when a member is missing or no members are
-- given.
-- Errors: 22023 for a member that is nested more than 100 deep; 22003 for a number that is larger than any double.
-- Rust: ledger/src/unique_key.rs.
-- Cost: no table.
-- Callers: weir_submit.
CREATE OR REPLACE FUNCTION unique_key_of(holder uuid, kind text, args jsonb, members text[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path FROM CURRENT
AS $$
BEGIN
    IF cardinality(members) > 0 AND args ?& members THEN
        RETURN sha256(convert_to('&kind=' || kind || '&args='
            || go_json((SELECT jsonb_object_agg(m, args -> m) FROM unnest(members) AS m), 0) || '&holder=' || holder, 'UTF8'));
    END IF;
    RETURN NULL;
END
$$;

-- functions/river/used_of.sql
-- The usage that a handler reported for its job, from River's metadata; null without a report. The metadata may contain
-- any number, so it is clamped to a bigint.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: emit_job_ends; ledger/src/settlement/sql/release.sql, ledger/src/audit/sql/i3_charges.sql.
CREATE OR REPLACE FUNCTION used_of(metadata jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(metadata -> 'weir:used') = 'number'
                THEN least(greatest(trunc((metadata ->> 'weir:used')::numeric), 0), 9223372036854775807)::bigint END
$$;

-- functions/river/wake_queue.sql
-- Notifies a queue's workers of a job, as River's own clients do. Called for every job that becomes available, even if
-- others wait. An idle worker must wake up, and the database does not show which workers are idle. PostgreSQL sends
-- equal notifications of one transaction once.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: weir_submit, deliver, promote_parked; ledger/src/attempts/sql/requeue_lost.sql,
-- ledger/src/control/sql/replay.sql and replay_undelivered.sql, ledger/src/periodic/enqueue.sql,
-- ledger/src/reconciliation/sql/take_over.sql, ledger/src/reservation/sql/notify.sql.
CREATE OR REPLACE FUNCTION wake_queue(queue text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify(river_channel('river_insert'), json_build_object('queue', queue)::text)
$$;

-- functions/settlement/charge_of.sql
-- The charge for a completed job: the usage that its handler reported, clamped to 0 up to the reserved amount; null
-- charges all of it. Rust: policy/src/admission.rs (charge).
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: charge_reservation, emit_job_ends; ledger/src/audit/sql/i3_charges.sql.
CREATE OR REPLACE FUNCTION charge_of(reserved bigint, used bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(greatest(coalesce(used, reserved), 0), reserved)
$$;

-- functions/settlement/charge_reservation.sql
-- Deletes the reservation of an ended job and charges `used` of it; null charges all of it. The caller holds the lock
-- of of_holder and passes the slot on. A job is charged once: a second call charges 0. The body of this rule for groups
-- is ledger/src/settlement/changes.rs with charge.sql, update_balances.sql and settle_draws.sql of
-- ledger/src/settlement/sql/. Rust computes the overage and the part of grants in policy/src/admission.rs
-- (charged_overage) and policy/src/grants.rs (charged_to_grants).
-- Errors: 40001 when another transaction has just moved the job to another holder.
-- Cost: one delete, one insert, one look-up and one write a window; two writes more for a job that drew on grants.
-- Callers: end_reservation.
CREATE OR REPLACE FUNCTION charge_reservation(job bigint, of_holder uuid, is_completed boolean, used bigint,
                       OUT charged bigint, OUT meter text, OUT freed int, OUT unparked int)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    r quota_reservations;
    to_grants bigint;
BEGIN
    charged := 0;
    DELETE FROM quota_reservations q WHERE q.job_id = job RETURNING * INTO r;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF r.holder IS DISTINCT FROM of_holder THEN
        RAISE serialization_failure USING
            MESSAGE = format('another transaction assigned job %s to another holder', job), HINT = 'retry the transaction';
    END IF;
    meter := r.event_type;
    freed := (r.admitted_at IS NOT NULL)::int;
    unparked := (r.parked_at IS NOT NULL)::int;
    IF is_completed AND r.user_id IS NOT NULL AND r.period_start IS NOT NULL THEN
        charged := charge_of(r.reserved_amount, charge_reservation.used);
    END IF;
    IF charged > 0 THEN
        INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start, windows, reserved_at, overage)
        VALUES (r.user_id, r.event_type, charged, r.job_id, r.period_start, r.windows,
                CASE WHEN r.windows <> 0 THEN r.created_at END,
                -- Overage is charged last.
                least(greatest(charged - (r.reserved_amount - r.overage), 0), r.overage))
        ON CONFLICT (job_id) DO NOTHING;
        IF NOT FOUND THEN
            -- The job is charged already.
            charged := 0;
        END IF;
    END IF;
    IF r.user_id IS NOT NULL AND r.period_start IS NOT NULL AND r.reserved_amount > 0 THEN
        UPDATE quota_balances b
        SET reserved = b.reserved - r.reserved_amount, used = b.used + charged, changes = b.changes + 1
        WHERE b.ctid = ANY (ARRAY(
            SELECT (SELECT k.ctid FROM quota_balances k
                    WHERE k.user_id = r.user_id AND k.event_type = r.event_type AND k.span = w.span
                      AND k.period_start = w.period_start
                    ORDER BY k.generation DESC LIMIT 1)
            FROM windows_of(r.period_start, r.windows, r.created_at) w));
    END IF;
    IF r.from_grants > 0 THEN
        -- The plan's part is charged first. The unused rest returns to the grants.
        to_grants := least(greatest(charged - greatest(r.reserved_amount - r.overage - r.from_grants, 0), 0),
                           r.from_grants);
        UPDATE usage_events u SET from_grants = to_grants WHERE u.job_id = job AND to_grants > 0;
        UPDATE quota_balances b SET from_grants = b.from_grants - (r.from_grants - to_grants)
        WHERE b.ctid = (SELECT k.ctid FROM quota_balances k
                        WHERE k.user_id = r.user_id AND k.event_type = r.event_type AND k.span = 'month'
                          AND k.period_start = r.period_start
                        ORDER BY k.generation DESC LIMIT 1);
        PERFORM settle_draws(ARRAY[job], ARRAY[to_grants]);
    END IF;
END
$$;

-- functions/settlement/end_reservation.sql
-- Deletes the reservation of an ended job, charges `used` of it, and promotes the holder's next parked jobs. The caller
-- holds the lock of of_holder. Returns the charge.
-- Errors: 40001 as charge_reservation().
-- Cost: as charge_reservation() and pass_on_slots().
-- Callers: weir_complete, fail_attempt.
CREATE OR REPLACE FUNCTION end_reservation(job bigint, of_holder uuid, is_completed boolean, used bigint) RETURNS bigint
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    ended record;
BEGIN
    ended := charge_reservation(job, of_holder, is_completed, used);
    IF ended.meter IS NOT NULL THEN
        PERFORM pass_on_slots(of_holder, ended.meter, ended.freed, ended.unparked);
    END IF;
    RETURN ended.charged;
END
$$;

-- functions/settlement/fail_attempt.sql
-- Records a failed attempt as River does, and frees its slot. weir_fail() for jobs of any kind. A job that retries keeps
-- its quota. The body of that rule for attempts that River's client recorded is ledger/src/settlement/sql/release.sql.
-- Errors: 22023 for an invalid retry_at; 25000 for another isolation level than READ COMMITTED; 40001 as
-- charge_reservation().
-- Cost: some six look-ups by key and three writes. Waits for the account's lock.
-- Callers: weir_fail; ledger/src/attempts/outstanding.rs.
CREATE OR REPLACE FUNCTION fail_attempt(job_id bigint, attempt int, error text, retry_at timestamptz, OUT outcome text)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- The function updates the counters itself, and turns the triggers off until it returns. A function owned by an
    -- ordinary role cannot have the setting in its definition.
    counters CONSTANT text := coalesce(current_setting('weir.counters', true), '');
    locked record;
    job river_job;
    ends river_job_state;
    again timestamptz;
    held record;
BEGIN
    PERFORM require_read_committed('weir_fail');
    IF NOT isfinite(retry_at) OR retry_at > clock_timestamp() + interval '366 days' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'retry_at must be within 366 days';
    END IF;
    SELECT * INTO locked FROM lock_holder_of_job(fail_attempt.job_id);
    SELECT * INTO job FROM river_job j
    WHERE j.id = fail_attempt.job_id AND j.attempt = fail_attempt.attempt AND (j.state = 'running') IS TRUE
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 'fenced_out';
        RETURN;
    END IF;
    PERFORM set_config('weir.counters', 'kept', true);
    ends := state_after_failure(job.metadata, job.attempt, job.max_attempts, 'retryable');
    -- Not immediately: River's client may still report this attempt, and its report does not identify the attempt.
    again := greatest(
        coalesce(fail_attempt.retry_at,
                 clock_timestamp() + make_interval(secs => retry_pause(job.kind, coalesce(cardinality(job.errors), 0)))),
        clock_timestamp() + interval '1 second');
    UPDATE river_job j
    SET state = ends,
        scheduled_at = CASE WHEN ends = 'retryable' THEN again ELSE j.scheduled_at END,
        finalized_at = CASE WHEN ends <> 'retryable' THEN clock_timestamp() END,
        errors = array_append(j.errors, attempt_error(
            j.attempt, attempt_started_at(j.metadata, j.attempt, j.attempted_by, j.attempted_at),
            left(coalesce(fail_attempt.error, ''), 10000)))
    WHERE j.id = job.id;
    IF ends = 'retryable' THEN
        outcome := 'retry';
        -- The job keeps its quota and frees its slot. It asks for a slot shortly before it is due.
        UPDATE quota_reservations r
        SET admitted_at = NULL, due_at = again - retry_lead()
        FROM quota_reservations o
        WHERE r.job_id = job.id AND o.job_id = r.job_id AND r.parked_at IS NULL
        RETURNING o.holder, o.event_type, o.admitted_at IS NOT NULL AS had_slot INTO held;
        IF FOUND THEN
            PERFORM pass_on_slots(held.holder, held.event_type, held.had_slot::int, 0);
        END IF;
    ELSE
        outcome := ends;
        PERFORM end_reservation(job.id, locked.holder, false, NULL);
    END IF;
    PERFORM set_config('weir.counters', counters, true);
END
$$;

-- functions/settlement/pass_on_slots.sql
-- Frees slots of a holder and gives them to its oldest parked jobs, as far as its plan allows now. Promotes at most
-- 1000 jobs per call, and the next promotion continues: without the bound, lifting a limit would promote all parked
-- jobs at once. The caller holds the account's lock.
-- Cost: five look-ups by key and one write; one index range and two writes a promoted job.
-- Callers: end_reservation, fail_attempt. Rust decides the same in ledger/src/settlement/changes.rs, where MAX_PROMOTED is
-- the same limit.
CREATE OR REPLACE FUNCTION pass_on_slots(of_holder uuid, meter text, freed int, unparked int) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    account holders;
    plan record;
    slots int;
    waiting int;
    n int := 0;
BEGIN
    SELECT * INTO account FROM holders k WHERE k.holder = of_holder AND k.event_type = meter
    ORDER BY k.generation DESC LIMIT 1;
    waiting := account.parked - unparked;
    IF waiting > 0 THEN
        SELECT * INTO plan FROM plan_of(account.user_id, meter, now());
        slots := slots_in_force(account.user_id, plan.tier, plan.slots, plan.own_slots);
        n := least(1000, greatest(least(waiting, slots::bigint - (account.slots_in_use - freed)), 0));
    END IF;
    IF n > 0 THEN
        -- A client address has no plan.
        PERFORM FROM promote_parked(
            ARRAY[of_holder], ARRAY[meter]::usage_event_type[], ARRAY[n],
            ARRAY[CASE WHEN account.user_id IS NULL THEN 'default' ELSE coalesce(plan.lane, 'default') END],
            ARRAY[slots], ARRAY[freed], ARRAY[unparked]);
    ELSIF freed <> 0 OR unparked <> 0 THEN
        UPDATE holders k SET slots_in_use = k.slots_in_use - freed, parked = k.parked - unparked, changes = k.changes + 1
        WHERE k.ctid = (SELECT h.ctid FROM holders h WHERE h.holder = of_holder AND h.event_type = meter
                        ORDER BY h.generation DESC LIMIT 1);
    END IF;
END
$$;

-- functions/settlement/promote_parked.sql
-- Gives free slots to the oldest parked jobs of the same holders. They become available now, at the tail of the lane of
-- their holder's current plan. Updates these holders' counters, including the freed slots. The caller holds the
-- holders' locks and has decided how many jobs each gets.
--
-- $1 holders, $2 meters, $3 how many jobs each gets, $4 lanes, $5 slot limits, $6 slots freed, $7 no longer parked;
-- distinct pairs. Returns the promoted jobs. Cost: two index ranges a holder, one primary key look-up a job. The cost
-- does not grow with the number of parked jobs. Promoted ones cost nothing, even while a session holds an old snapshot
-- (see holders.parked_from). They do after an older job was parked, or while the first one cannot start.
-- Callers: pass_on_slots; ledger/src/settlement/statements.rs.
CREATE OR REPLACE FUNCTION promote_parked(uuid[], usage_event_type[], int[], text[], int[], int[], int[])
RETURNS TABLE (job_id bigint, attempt smallint, holder uuid, event_type usage_event_type)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    -- The comparisons of rows and the orders have the columns of quota_reservations_parked. With equality, the planner
    -- may walk over all holders' reservations by the primary key.
    WITH wanted AS MATERIALIZED (
        SELECT w.*, h.place, h.parked_from,
               (SELECT r.job_id FROM quota_reservations r
                WHERE r.parked_at IS NOT NULL
                  AND (r.holder, r.event_type, r.job_id) >= (w.holder, w.event_type, h.parked_from)
                  AND (r.holder, r.event_type, r.job_id) <= (w.holder, w.event_type, 9223372036854775807)
                ORDER BY r.holder, r.event_type, r.job_id
                LIMIT 1) AS first_parked
        FROM unnest($1::uuid[], $2::usage_event_type[], $3::int[], $4::text[], $5::int[], $6::int[], $7::int[])
            AS w (holder, event_type, n, lane, slot_limit, freed, unparked)
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place, k.parked_from FROM holders k
            WHERE k.holder = w.holder AND k.event_type = w.event_type
            ORDER BY k.generation DESC LIMIT 1
        ) h
    ), picked AS MATERIALIZED (
        SELECT w.holder, w.event_type, w.place, w.lane, p.job_id
        FROM wanted w
        CROSS JOIN LATERAL (
            SELECT r.job_id
            FROM quota_reservations r
            WHERE r.parked_at IS NOT NULL
              AND (r.holder, r.event_type, r.job_id) >= (w.holder, w.event_type, w.first_parked)
              AND (r.holder, r.event_type, r.job_id) <= (w.holder, w.event_type, 9223372036854775807)
              AND (SELECT j.state IN ('pending', 'scheduled') FROM river_job j WHERE j.id = r.job_id)
            ORDER BY r.holder, r.event_type, r.job_id
            LIMIT w.n
        ) p
    ), woken AS (
        UPDATE river_job j
        SET state = 'available',
            -- A retry gets its slot shortly before its scheduled time, which does not change.
            scheduled_at = CASE WHEN j.state = 'pending' THEN greatest(j.scheduled_at, clock_timestamp())
                                ELSE clock_timestamp() END,
            queue = queue_in_lane(j.queue, p.lane)
        FROM picked p
        WHERE j.id = p.job_id AND (j.state IN ('pending', 'scheduled')) IS TRUE
        RETURNING j.id, j.attempt, j.queue, p.holder, p.event_type, p.place
    ), admitted AS (
        UPDATE quota_reservations r
        SET admitted_at = clock_timestamp(), parked_at = NULL
        -- An array, so that the planner does not scan a table that was nearly empty at the last ANALYZE.
        WHERE r.job_id = ANY (ARRAY(SELECT w.id FROM woken w))
    ), counted AS (
        UPDATE holders h
        SET slots_in_use = h.slots_in_use - d.freed + d.n,
            parked = h.parked - d.unparked - d.n,
            granted_slots = CASE WHEN d.n > 0 THEN d.slot_limit ELSE h.granted_slots END,
            -- The next promotion starts at the job that was the first. If too few jobs were found, it looks at all
            -- parked jobs once, in case another program left a wrong start.
            parked_from = CASE WHEN d.n < d.wanted AND d.parked_from > 0 THEN 0
                               ELSE coalesce(d.first_parked, h.parked_from) END,
            changes = h.changes + 1
        FROM (
            SELECT place, sum(freed) AS freed, sum(unparked) AS unparked, sum(n) AS n, sum(wanted) AS wanted,
                   max(slot_limit) AS slot_limit, max(parked_from) AS parked_from, max(first_parked) AS first_parked
            FROM (
                SELECT place, freed, unparked, 0 AS n, n AS wanted, slot_limit, parked_from, first_parked FROM wanted
                UNION ALL
                SELECT place, 0, 0, 1, 0, 0, NULL, NULL FROM woken
            ) each
            GROUP BY place
        ) d
        WHERE h.ctid = d.place
    ), notified AS (
        SELECT wake_queue(q.queue) FROM (SELECT DISTINCT queue FROM woken) q
    )
    SELECT w.id, w.attempt, w.holder, w.event_type FROM woken w WHERE (SELECT count(*) FROM notified) >= 0;
END
$$;

-- functions/settlement/settle_draws.sql
-- Settles the draws of ended jobs on grants. Each draw is charged in the order of the draws, and the rest returns to
-- its grant. The caller holds the accounts' locks.
-- Cost: one index range a job, and one write a draw and grant.
-- Callers: charge_reservation, count_reservations; ledger/src/settlement/sql/settle_draws.sql.
CREATE OR REPLACE FUNCTION settle_draws(jobs bigint[], charges bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT d.job_id, d.position, d.grant_id, d.amount,
               least(d.amount, greatest(0, e.charged - (
                   sum(d.amount) OVER (PARTITION BY d.job_id ORDER BY d.position) - d.amount)))::bigint AS charged
        FROM unnest(jobs, charges) AS e (job_id, charged)
        JOIN grant_draws d ON d.job_id = e.job_id AND d.charged IS NULL
    ), charged AS (
        UPDATE grant_draws d SET charged = e.charged FROM ended e
        WHERE d.job_id = e.job_id AND d.position = e.position AND e.charged > 0
    ), returned AS (
        DELETE FROM grant_draws d USING ended e
        WHERE d.job_id = e.job_id AND d.position = e.position AND e.charged = 0
    )
    UPDATE grants g SET reserved = g.reserved - s.amount, used = g.used + s.charged
    FROM (SELECT grant_id, sum(amount)::bigint AS amount, sum(charged)::bigint AS charged FROM ended GROUP BY 1) s
    WHERE g.id = s.grant_id;
END
$$;

-- views/active_webhooks.sql
-- The webhooks that receive events: neither disabled nor removed.
CREATE OR REPLACE VIEW active_webhooks AS
SELECT w.id, w.url, w.events, w.thresholds,
       w.events && ARRAY['quota.threshold', 'quota.renewed'] AS has_thresholds,
       w.secret, w.previous_secret, w.previous_until, w.older_secret
FROM webhooks w
WHERE w.disabled_at IS NULL AND w.removed_at IS NULL;

COMMENT ON VIEW active_webhooks IS
    'The webhooks that receive events: neither disabled nor removed.';
COMMENT ON COLUMN active_webhooks.has_thresholds IS
    'Whether it receives an event about a threshold.';

-- views/charged_amounts.sql
-- One row per usage event and window that it counts in: the rows that quota_balances.used adds up.
CREATE OR REPLACE VIEW charged_amounts AS
SELECT user_id, event_type, 'month' AS span, period_start, quota_amount AS amount, from_grants
FROM usage_events
UNION ALL
SELECT u.user_id, u.event_type, w.span, date_trunc(w.span, coalesce(u.reserved_at, u.created_at), 'UTC'), u.quota_amount, 0
FROM usage_events u
JOIN short_windows() w ON u.windows & w.mask <> 0
WHERE u.windows <> 0;

COMMENT ON VIEW charged_amounts IS
    'The charges: one row per usage event and window that it counts in.';

-- views/reserved_amounts.sql
-- One row per reservation and window that it counts in: the rows that quota_balances.reserved adds up.
CREATE OR REPLACE VIEW reserved_amounts AS
SELECT user_id, event_type, 'month' AS span, period_start, reserved_amount AS amount, from_grants
FROM quota_reservations
WHERE user_id IS NOT NULL AND period_start IS NOT NULL
UNION ALL
SELECT r.user_id, r.event_type, w.span, date_trunc(w.span, r.created_at, 'UTC'), r.reserved_amount, 0
FROM quota_reservations r
JOIN short_windows() w ON r.windows & w.mask <> 0
WHERE r.windows <> 0 AND r.user_id IS NOT NULL AND r.period_start IS NOT NULL;

COMMENT ON VIEW reserved_amounts IS
    'The reservations: one row per reservation and window that it counts in.';

-- rows.sql
-- The rows of a new database: the settings, and the catalogue that Weir ships with. `weir migrate` then writes the
-- catalogue of weir.toml.

INSERT INTO weir_settings DEFAULT VALUES;

INSERT INTO weir_locks (name) VALUES ('admin_log'), ('renewals'), ('usage_archive');

INSERT INTO meters (name, unit) VALUES ('analysis', 'units'), ('specview', 'units');

INSERT INTO subscription_plans
    (tier, lane, is_default, analysis_monthly_limit, specview_monthly_limit, retention_days, monthly_price)
VALUES
    ('free', 'default', true, 50, 5000, 30, 0),
    ('pro', 'priority', false, 1000, 100000, 180, 15),
    ('pro_plus', 'priority', false, 5000, 500000, 365, 59),
    ('enterprise', 'priority', false, NULL, NULL, NULL, NULL);

-- The plans' trigger has inserted these rows, with the month's limits.
UPDATE plan_limits l
SET slots = s.slots
FROM subscription_plans p
JOIN (VALUES ('free', 1), ('pro', 3), ('pro_plus', 3), ('enterprise', 5)) AS s (plan, slots) ON s.plan = p.tier
WHERE p.id = l.plan_id;

INSERT INTO weir_schema (release, upgrade, files) VALUES ('0.1.0', 0, '{
 "functions/account/account_of.sql": "e68bdfb5432d008db2984bb90787d1e85af0b2bd093967e7faf1a42e2b7b7b80",
 "functions/account/billing_period.sql": "05a6da4c9b79faf843e3d494f18cecf7bb56701b5fe7c628e02477cd41dc6d8d",
 "functions/account/check_submission.sql": "bf043f13516092bb3a45baef4b955cdcda5773975435e2bcb528e8a1cadaf15f",
 "functions/account/count_scheduled.sql": "3d207faa60df8d87fd96698dd16f3704b6f0d253a79d893479d4a8d4000c70ee",
 "functions/account/create_users.sql": "b9d5dbf8c4fea55ea8c50d9701521e3f6b33a4ea5d9df37c4f3018eff8f07def",
 "functions/account/draw_grants.sql": "e2b5ffd395aa6f0af02e1a2d9e53222b9e27fdba41fb503ac22727087bedff58",
 "functions/account/grants_left.sql": "320e172a15f755668730bc927ac0ce264c8fed70ce2e95a7b1964e6c2365d9c0",
 "functions/account/is_address_id.sql": "802880c4d7bb0ab66b5596f597e33a85951a06f3535473eb24401b71184ae195",
 "functions/account/is_imported.sql": "f7caa876c075e3314d240ea47139ee1b987a6b8e0db9fef5114ceaf90fb61f7f",
 "functions/account/lock_account.sql": "8b8a2e02a380d6d690b8cc5afd91b8e1fc61c443dd2f219b3480462d79e59950",
 "functions/account/lock_holder_of_job.sql": "5dae60b7bea317530cad77f6854a30b2ca4530c2de1286d6a5307a3dfbfe48bb",
 "functions/account/lock_holders.sql": "fbf87f66b416ff95155b89613044f47b1f71268d369fddb474f43e804fe8a86e",
 "functions/account/max_accepted.sql": "d6b3b5dce65c845f3316eb2a12bf4dbda0360ac22d38ab5ec6ef3dcc73776540",
 "functions/account/move_usage.sql": "66b4536a6e847413f53e794c4fc6c32903816ecc6a840ac69e7005e575c6270a",
 "functions/account/paid_anchor.sql": "90745a8d24d4b517299b7b71dfb6896684cb02b4a4f881ad2aedc42df6217f0e",
 "functions/account/period_start_of.sql": "ca0f6940ec4ef9994c1d6a81a81c85bd92ff7b3fc033b827f8f7f6d55eb8e154",
 "functions/account/plan_change_refusal.sql": "6311af5b2ca8436f88fff01ea7c20ca65f2c7f7f1e3c4044a04989e838215ac8",
 "functions/account/plan_of.sql": "905b5c96bc0016a2a80d61a287cfa0df87bfd21041b3a2ae5345779a4c0a8b3c",
 "functions/account/quota_json.sql": "023416757cccb7d5d267df74aad48aa59509e2a0a4f0c81b80137c8c0368526e",
 "functions/account/raise_no_limits.sql": "65a368f2eda043dcf032e9c577c8a4ee474335038d3607a9b16e7622e00a8626",
 "functions/account/reserve_in_windows.sql": "390ff9df0c4bbf737b22bfe87a2e31dc7a1734bb13257f3688060cf338f5985d",
 "functions/account/retention_of.sql": "2fa749a6d182222c380e2769ea1758cee02808c871c88b81471a750241cd8c86",
 "functions/account/retry_lead.sql": "8c3a66ac55c6c0bf191cfe71d6498974a0dcda602dd7c1c8831522246930bf0e",
 "functions/account/room_for.sql": "7ef6b2fdd233e5b4fb45987e7b49b4ce5de2252f57330af64ca7d7d3825bebb3",
 "functions/account/room_in.sql": "22d1939fea12be5071042f8c417ce19c8d3c551fec4b66bf9292267a26705f66",
 "functions/account/short_window_lifetime.sql": "d0a67ff19215b38e65325d255f896a58e844989fe8773726e79e4b52a0737666",
 "functions/account/short_windows.sql": "7b9d29d9c552da8db43c2029047e121983440e93d441f33f0ae70763bb320d1a",
 "functions/account/slot_limit.sql": "1de87fd221c7a474e78b9aed64c5cbbb35090740219fe736b2f2a2bee6ca41a4",
 "functions/account/slots_in_force.sql": "d0aad06947b94bef34bfad4dd88f07aa1fcb022df9f0af55710f8e64dc30283d",
 "functions/account/subject_id.sql": "e725e0866b287b9e6c96d93113d6be96e6175b2dbf7c2e65b2cc4891ac34ba48",
 "functions/account/subject_of.sql": "fa34303d739f6a4eccf08f909d602e57d80231deab699f1ed4e9d64ed51fad97",
 "functions/account/submission_outcome.sql": "b31dae5b16112d48ead9efb0fe14e3e8b2f7054abe22f609fc126c92b5b36f74",
 "functions/account/subscription_of.sql": "2f693150cf911c75da599322b4daa7ca9d32592497653d747cd84eca4d767e6f",
 "functions/account/tier_of.sql": "5a5b1600bfa312821f00298bd2a7d5734b6f44585a333c2f114f40f282b28d46",
 "functions/account/utc_text.sql": "4be19bd93e8ebeb3d25bdf911475362fca6679a481cc17f495d5cc541ccf5552",
 "functions/account/uuid_of_subject.sql": "5046316d71276fe83f183c78bc517bf688b29b84a23217e1114f2a449f8d2905",
 "functions/account/was_deleted.sql": "e8f102cb3cf7d9aefa6cbb4f7fd97cd5a48b964d63ea38143e80cb9cc668fc0f",
 "functions/account/windows_of.sql": "ab0d1bb7f0b906c0aa11bc4199b74c8d2a55bb5d47eb1d3f880f2a8263e192cd",
 "functions/account/windows_with_limits.sql": "71f15df18259773f6c7ed9c8a26d8855558aca3bd1306e42d4c49685a8aeaaf9",
 "functions/api/amount_of.sql": "3e28f95954e5f5babeb2dd067f6460cdcfde11db08f601cbaba52aa21ebda65d",
 "functions/api/is_attempt_without_holder.sql": "a02d9fd85b476addb09fa83bc7284fa535aceaf3a0569d7b2913ee9248781890",
 "functions/api/is_service_kind.sql": "ca8d2623afe472c20fbc4f9428c6e095979c960706586c68bc828ef3775b9f52",
 "functions/api/key_lifetime.sql": "5ddd060b9e16b93cdd800980ed931ec446b1d868bcd8d92a2a90a90146be4d4a",
 "functions/api/raise_no_service.sql": "b6dce6d5b6f5432db75582c6340b166b8ca005f389b27e8ec7e44449035248ec",
 "functions/api/record_heartbeat.sql": "778d3e7fa859290808e4743be99808fc63a54b7949528cf7805a5b555db68286",
 "functions/api/require_read_committed.sql": "fd332ea037af86a1eb163bb4a89becc0148fdbce901169402ab94467b97dbf2f",
 "functions/api/require_worker_name.sql": "b481c6ff8c485bce4028048c8a3525dcff56194659474bc9e0757472103cec2a",
 "functions/api/submit_options.sql": "f47ed016a80c321dfeaa750310925429ee96587c4e577588fa80a18c97b767a8",
 "functions/api/weir_claim.sql": "c97e6f8e3b8b670c9df3ff8addf9c5a9c0fcb3d14470486ef0bf877d3420d4fe",
 "functions/api/weir_complete.sql": "bd9a707d5323aae6c88a8263ef83d5b033bd2e02b8c0ca78914cac6120909124",
 "functions/api/weir_extend.sql": "a526efd4153c10f26383846c328719badc2f4f82e2c24bd48cf6e44c0935e7f2",
 "functions/api/weir_fail.sql": "d8989fbfe0c4ab073ac9662a84d5bc5bcd7ad7e30f0c4332353ecbc988a37735",
 "functions/api/weir_heartbeat.sql": "33bfbd26fc82b4553d005951211b58d485b381489b3f29b6a99eb48331300e30",
 "functions/api/weir_holder.sql": "94655814b0de68fcb8804e9273eb4321834dd19d3cd62ada28bfd60ad1c0ec84",
 "functions/api/weir_progress.sql": "227cc86dfd9e76a8e37d94eca8c82dedd2b9b69c537f5a3ab6628c2d14fabe7d",
 "functions/api/weir_quota.sql": "a850571d946fc36f2ba3c7bbfcf84708f72bb2e8f0e1368141be0d7a57b7aa6f",
 "functions/api/weir_submit.sql": "416766f234b8d0be746625e9e86bee537e74123114a145325628843db7c103ab",
 "functions/counters/count_limited_windows.sql": "b425b99b09897425d9f582d10b7b2a2e43558ef63604bf7628ccb0585a7b04d3",
 "functions/counters/count_reservations.sql": "065e5ab677d1666b1a9cf12a39dc406537ca127fb0c6f64038cf747f86caec4c",
 "functions/counters/count_usage_events.sql": "5c5f2545f7c42150281232391032e37f27c80a25abef167191cd2ea3593c3172",
 "functions/counters/fill_quota_row.sql": "3c9acae763b9453a14c88cb77701887038cc489f640582313acff18de3d1c2ba",
 "functions/counters/follow_monthly_limits.sql": "5a3ea0b2d84a136443faa35b92d59353fd07a0160c2f1b591e4ef70fc5fee3ef",
 "functions/counters/note_log_timeline.sql": "e0b1e7d8b0e9829824fb138a55e9444e2da2c033edb3e0976c518d2670fe4960",
 "functions/counters/refuse_log_changes.sql": "4ab327a8cf29ed7895a2bac046ab6f473ac7553aa7ac4629f1ff5d54fcc7d4ed",
 "functions/counters/remember_grants.sql": "e3603049288c48c1ed1381a7b6be838ea52e8a364ebde4a5bfa429a15bb0dded",
 "functions/counters/require_meters.sql": "a08364c26a6231f72c969586f74d5c91ac570c7f5e68a366fea9b2c4468dfe74",
 "functions/counters/serialize_log.sql": "fb07fe93f93526fa945bd8c14861b05ecf4ceb861f54450384b61a6e3d19e0e0",
 "functions/counters/touch_updated_at.sql": "b14363ed42b5e7a76122ea527d002e5ed2ea4b6f5eb579cf0752131bac68bfe6",
 "functions/counters/write_monthly_limit.sql": "6e45a1a399a1600c56855d410d6ded3c70e40df0ed76017740307b25a2b29534",
 "functions/events/check_threshold_subscribers.sql": "e107d350d2cccf170e6dbb9f2fd7aa8f50f047761d04a72bd3077a02e3eadb0a",
 "functions/events/deliver.sql": "1fa38f366f93a7323776a4abacd8f4cbfb35d8ba13f1703e26fd25befa8d59a6",
 "functions/events/emit.sql": "45fcf123d7ad2fade3469489cb269a8013ea7e1f1e62ba9b74861a643dc7097b",
 "functions/events/emit_job_ends.sql": "9eb8b7189cfe328c8a6f4375a4be08d8d76ea049f2e4664cb6ca2585016c20af",
 "functions/events/emit_override_thresholds.sql": "4bafbdac83fbefeb130ec5f8352eac59b59fc56661174d7055258a5349c43fc4",
 "functions/events/emit_plan_change.sql": "db0e2acfb74b337e69e54c8923133f0643432e3445e868f2fa4a54e77d0569db",
 "functions/events/emit_renewals.sql": "67e058eeac8ab4fcb9c308e06f25f7b195d3ef5a211f5820978d647a1f65e3d4",
 "functions/events/emit_thresholds.sql": "17c4ca9a2c18852857c6c95eb4f2e26b659988289a6f7c5b2f81708b538ce5b3",
 "functions/events/emit_usage.sql": "7f381e46e2d79abfe49acc3c291633b9a7be7a4eeaf6cf672ca105e306aa20fa",
 "functions/events/webhook_queue.sql": "f9538c75f5486de40b2494e0fe7b7114dcad35c75490e7af67d539b6bfff4a27",
 "functions/maintenance/current_timeline.sql": "e03037e57d009f94cbbde2511ccd2c8c5a47bd9f85d164d082e66268b5cb3514",
 "functions/river/attempt_error.sql": "954c749d4470d3408ff2f06ce872095c0edee9c2e2c1b7c9bced4eaaf4f7c3b2",
 "functions/river/attempt_started_at.sql": "ec54d6268ddb9efbc5a0c937eafee1a0d062d4a8a92ddaadd7b8c202ea2ddb50",
 "functions/river/claim_of.sql": "cf74f7bb68f455be37fa642d3beb9b699805671e4f92363144c26bbf53bc8016",
 "functions/river/error_of.sql": "37ed5102f48a9ddf072a961e32649fc0dfafd690347209e287d060efbc0f25e7",
 "functions/river/go_json.sql": "1e3572a2a5ab55576542f391c334aee7ce0261713b75f0a93bb2d7f41c48b6ac",
 "functions/river/is_another_job.sql": "95ac67796219a819e429de3fb7a5e106a4761380526fcd1be9acadf277ccb6be",
 "functions/river/is_large_output.sql": "046b8d98c6935062550b16a1c39440190f044f6fb2bd9bf3af40756f7474458d",
 "functions/river/may_be_pending.sql": "2f625f6530b9e772a7d4b9aa77148ec35ac4fa0e9125ff0459273b6beb63abb9",
 "functions/river/output_of.sql": "838a7fa8b3bbb522641de7468b842207b87b62e761a384b07772bc773c38bef4",
 "functions/river/outstanding_answers.sql": "bac5285220d73266b9c786095987be0760d31230e87b3b84ff0f91e06e6a6d16",
 "functions/river/outstanding_jobs.sql": "228cfb8538536dae72f0f2ad6f27d5b02e6f4253a47d230142b423cf28fe8547",
 "functions/river/queue_in_lane.sql": "cf0b16ade5ce58bd0ff911d3a1e0230af86909ac1126d33eeb52bc0123690e0d",
 "functions/river/reason_of.sql": "5e5c1fb3e0e4d4516269790b5e2e12e0d584215721f028d80e13b92032741160",
 "functions/river/retry_pause.sql": "aca5186df1981d9b2cdafc6d608a48b289f505eb0ebcb32a622e90bd05860851",
 "functions/river/river_channel.sql": "ebbd85d62af39b138c2e86bf2e5ae8f5fa64bf5b056f93649478a5c9e2b62065",
 "functions/river/state_after_failure.sql": "4c3a6903197b5386f19b9ec7d9251e243dd8437a6d02f6865da13b47668f384b",
 "functions/river/unique_key_of.sql": "3e2d035ea2166512224ec3ef5c7070d66f4584081438a6ab4f63dba929d38bb6",
 "functions/river/used_of.sql": "52f4b389c1671177d6e9f474a2cef1dc54feda98b7ed75a268a705fa5bd43a3d",
 "functions/river/wake_queue.sql": "08330ac2df394b7c8de9366774bc5e6f393928d60f807e62b63f3e8df015e312",
 "functions/settlement/charge_of.sql": "0e4b2ff3482ec32f6516cded25475ece18aef47900e11e5c58e4e45476ec438b",
 "functions/settlement/charge_reservation.sql": "f7e0a4b8bd52a31c01c74d5e3528b971b0b8b680ccccd756e8f3e4dbace56230",
 "functions/settlement/end_reservation.sql": "b10b58106a68fa5a043f5c154b739c055daeb467685e92c95811d45409844bd7",
 "functions/settlement/end_reservations_of_users.sql": "81892b6259d0e8869b2a102ee5dd66be84896ca31b8427715045b5f890e02993",
 "functions/settlement/fail_attempt.sql": "d6bf16c0e002de6cb787a034609830b353d316b238ccf1c2bf0fddddaebae2be",
 "functions/settlement/pass_on_slots.sql": "54d89cc5193e32f2514a17ae8bf2574def774e5a0ade5e3da9fd4b9cc555682e",
 "functions/settlement/promote_parked.sql": "75fd82ca08aaeea28792b8fb3684adc1b21ceae8b92ad83db9513e79a4234cd4",
 "functions/settlement/settle_draws.sql": "a980d51f327303189042ba89e278eafac3eb2933a810459921023d5f408ac235",
 "views/active_webhooks.sql": "ea83d467fec4492fdb08637fb87160185d2552164466dbcf6db2bc4e76e99dd2",
 "views/charged_amounts.sql": "abf8e74aff0c901bfc40007304e4c002f99ff1214a8c7f6f1019955ab845508b",
 "views/reserved_amounts.sql": "55a120470323d6390d8e3d147fff0de3d7b20532ca9e44882c67e26a17960eac"
}');
COMMIT;
