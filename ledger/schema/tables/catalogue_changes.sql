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
