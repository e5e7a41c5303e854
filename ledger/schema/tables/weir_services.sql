CREATE TABLE weir_services (
    name text COLLATE "C" NOT NULL,
    event_type usage_event_type NOT NULL,
    kind text NOT NULL,
    max_attempts smallint NOT NULL,
    unique_by text[] NOT NULL DEFAULT '{}',
    amount bigint,
    amount_member text,
    retry_base double precision,
    retry_factor double precision,
    retry_power double precision,
    retry_max double precision,
    timeout double precision,
    expires_in double precision,
    PRIMARY KEY (name),
    CONSTRAINT weir_services_amount_check CHECK (amount >= 0),
    CONSTRAINT weir_services_max_attempts_check CHECK (max_attempts > 0),
    FOREIGN KEY (event_type) REFERENCES meters(name) ON DELETE CASCADE
);

COMMENT ON TABLE weir_services IS
    'The services of weir.toml, for the SQL functions. `weir migrate` writes them.';
COMMENT ON COLUMN weir_services.name IS
    'The service''s name.';
COMMENT ON COLUMN weir_services.event_type IS
    'The meter of the service.';
COMMENT ON COLUMN weir_services.kind IS
    'River''s kind of the service''s jobs.';
COMMENT ON COLUMN weir_services.max_attempts IS
    'The maximum number of attempts of a job.';
COMMENT ON COLUMN weir_services.unique_by IS
    'Members of the arguments by which an unfinished job of the holder is taken for the same.';
COMMENT ON COLUMN weir_services.amount IS
    'The amount that one job reserves; null: amount_member of its arguments, and without that the caller gives it.';
COMMENT ON COLUMN weir_services.amount_member IS
    'The member of the arguments that holds the amount.';
COMMENT ON COLUMN weir_services.retry_base IS
    'Seconds, like retry_max; null leaves retries to River''s policy.';
COMMENT ON COLUMN weir_services.retry_factor IS
    'The factor by which the pause grows with each attempt.';
COMMENT ON COLUMN weir_services.retry_power IS
    'The power of the attempt by which the pause is multiplied.';
COMMENT ON COLUMN weir_services.retry_max IS
    'The longest pause between attempts, in seconds.';
COMMENT ON COLUMN weir_services.timeout IS
    'The time that an attempt may take, in seconds. A longer one is overdue.';
COMMENT ON COLUMN weir_services.expires_in IS
    'The time in seconds after which a job that still waits is cancelled; null: never.';

CREATE INDEX weir_services_kind ON weir_services (kind);
