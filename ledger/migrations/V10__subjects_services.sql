-- What the functions for other languages need to know: which holder a subject is, what services there are, and by what
-- the processes count.

-- The id of a subject that is no UUID: a UUIDv8 of SHA-256, which the server has built in and Rust computes alike.
CREATE FUNCTION subject_id(namespace uuid, subject text) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT encode(set_byte(set_byte(h, 6, get_byte(h, 6) & 15 | 128), 8, get_byte(h, 8) & 63 | 128), 'hex')::uuid
    FROM (
        SELECT substr(sha256(uuid_send(namespace) || convert_to('subject:' || subject, 'UTF8')), 1, 16) AS h
    ) hashed
$$;

-- The users whose ids were UUIDv5 get the new ones, with all that is theirs: whatever refers to users, and whatever names
-- a holder.
CREATE TEMPORARY TABLE moved_users ON COMMIT DROP AS
SELECT u.id AS old, subject_id(s.address_namespace, u.subject) AS new, u.subject, u.created_at
FROM users u CROSS JOIN weir_settings s
WHERE u.subject IS NOT NULL AND substr(u.id::text, 15, 1) = '5';
UPDATE users u SET subject = NULL FROM moved_users m WHERE u.id = m.old;
INSERT INTO users (id, subject, created_at) SELECT new, subject, created_at FROM moved_users;
DO $$
DECLARE
    c record;
BEGIN
    PERFORM set_config('weir.books', 'kept', true);
    FOR c IN
        SELECT a.attrelid::regclass AS tab, a.attname AS col
        FROM pg_constraint f
        JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = ANY (f.conkey)
        WHERE f.contype = 'f' AND f.confrelid = 'users'::regclass
        UNION
        SELECT a.attrelid::regclass, a.attname
        FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid
        WHERE t.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND t.relkind = 'r'
          AND a.atttypid = 'uuid'::regtype AND NOT a.attisdropped
          -- The log of operators' decisions stays as it was written.
          AND (a.attname = 'holder' AND t.relname <> 'admin_log'
               OR a.attname = 'user_id' AND t.relname IN (
                   'submissions', 'quota_reservations', 'quota_balances', 'usage_events', 'plan_changes',
                   'limit_overrides', 'grants'))
    LOOP
        EXECUTE format('UPDATE %s t SET %I = m.new FROM moved_users m WHERE t.%I = m.old', c.tab, c.col, c.col);
    END LOOP;
    PERFORM set_config('weir.books', '', true);
END
$$;
DELETE FROM users u USING moved_users m WHERE u.id = m.old;

CREATE TABLE weir_services (
    name text COLLATE "C" PRIMARY KEY,
    event_type usage_event_type NOT NULL REFERENCES meters ON DELETE CASCADE,
    kind text NOT NULL,
    max_attempts smallint NOT NULL CHECK (max_attempts > 0),
    unique_by text[] NOT NULL DEFAULT '{}',
    amount bigint CHECK (amount >= 0),
    amount_member text,
    retry_base double precision,
    retry_factor double precision,
    retry_max double precision
);
COMMENT ON TABLE weir_services IS 'the services of weir.toml, as `weir migrate` brought them here, for the SQL functions';
COMMENT ON COLUMN weir_services.amount IS
    'what one job reserves; null: amount_member of its arguments says it, and without that the caller';
COMMENT ON COLUMN weir_services.retry_base IS 'seconds, as retry_max; null leaves it to River''s policy';

ALTER TABLE weir_settings
    ADD COLUMN reservation_ttl interval NOT NULL DEFAULT '1 hour',
    ADD COLUMN counts_slots boolean NOT NULL DEFAULT true,
    ADD COLUMN slots_of_plans jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN anonymous_slots int NOT NULL DEFAULT 1 CHECK (anonymous_slots > 0);
COMMENT ON COLUMN weir_settings.counts_slots IS
    'whether the database holds jobs to their holders'' slots; this and what follows is as `weir migrate` found it set';
COMMENT ON COLUMN weir_settings.slots_of_plans IS 'slots that variables set, by plan; they win over those of the plans';

-- A job may be accepted for later: it holds its quota at once, and asks for a slot when it is due.
ALTER TABLE quota_reservations
    ADD COLUMN due_at timestamptz,
    ADD COLUMN progress jsonb,
    ADD CONSTRAINT quota_reservations_due CHECK (due_at IS NULL OR admitted_at IS NULL AND parked_at IS NULL);
CREATE INDEX quota_reservations_due_at ON quota_reservations (due_at) WHERE due_at IS NOT NULL;
COMMENT ON COLUMN quota_reservations.due_at IS 'when its job asks for a slot; null: it has, or its next attempt will';
COMMENT ON COLUMN quota_reservations.progress IS 'how far an attempt says that it is: attempt, fraction, message';

-- The slots of a holder in force: its own, else those of the environment, else the plan's. The largest int is unlimited.
CREATE FUNCTION slots_in_force(of_user uuid, plan text, slots_of_plan int, own_slots int) RETURNS int
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN NOT s.counts_slots THEN 2147483647
                WHEN of_user IS NULL THEN s.anonymous_slots
                ELSE coalesce(own_slots, (s.slots_of_plans ->> plan)::int, slots_of_plan) END
    FROM weir_settings s
$$;

-- The UUID that a subject is, in any of its spellings; null for other texts.
CREATE FUNCTION uuid_of_subject(subject text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    hyphenated CONSTANT text := '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}';
BEGIN
    IF subject ~* format('^([0-9a-f]{32}|%1$s|\{%1$s\}|urn:uuid:%1$s)$', hyphenated) THEN
        RETURN regexp_replace(subject, '^urn:uuid:', '', 'i')::uuid;
    END IF;
    RETURN NULL;
END
$$;

-- The holder that a subject is. A UUID is its own.
CREATE FUNCTION weir_holder(subject text) RETURNS uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
BEGIN
    IF subject IS NULL OR octet_length(convert_to(subject, 'UTF8')) NOT BETWEEN 1 AND 255
       OR subject ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a subject has 1 to 255 bytes and no control characters';
    END IF;
    RETURN coalesce(uuid_of_subject(subject),
                    subject_id((SELECT s.address_namespace FROM weir_settings s), subject));
END
$$;
