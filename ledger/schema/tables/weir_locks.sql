CREATE TABLE weir_locks (
    name text NOT NULL,
    PRIMARY KEY (name)
);

COMMENT ON TABLE weir_locks IS
    'Rows to lock: a transaction that must be the only one of its kind locks its row. Any role can take an advisory lock; a row can be locked only by a role that may write it.';
COMMENT ON COLUMN weir_locks.name IS
    'The lock''s name.';
