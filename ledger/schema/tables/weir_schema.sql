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
