CREATE TABLE meters (
    name usage_event_type NOT NULL,
    unit text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name)
);

COMMENT ON TABLE meters IS
    'The thing that is counted. `weir migrate` brings the meters of weir.toml here.';
COMMENT ON COLUMN meters.name IS
    'The meter''s name.';
COMMENT ON COLUMN meters.unit IS
    'One unit, in the plural, such as analyses.';
COMMENT ON COLUMN meters.created_at IS
    'When it was added.';
