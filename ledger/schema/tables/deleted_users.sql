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
