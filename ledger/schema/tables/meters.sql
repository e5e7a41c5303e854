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
