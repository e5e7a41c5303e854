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

CREATE TRIGGER end_reservations BEFORE DELETE ON users
    FOR EACH ROW EXECUTE FUNCTION end_reservations_of_users();
