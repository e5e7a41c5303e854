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
