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
