CREATE TABLE specview_cache (
    holder uuid NOT NULL,
    language text NOT NULL,
    test_key bytea NOT NULL,
    rendered text NOT NULL,
    job_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (holder, language, test_key)
);

COMMENT ON TABLE specview_cache IS
    'Unused. Processes of release 0.1.0 need it during an upgrade.';
COMMENT ON COLUMN specview_cache.holder IS
    'The account of the job that rendered it.';
COMMENT ON COLUMN specview_cache.language IS
    'The language of the rendering.';
COMMENT ON COLUMN specview_cache.test_key IS
    'The hash of the test case.';
COMMENT ON COLUMN specview_cache.rendered IS
    'The rendering.';
COMMENT ON COLUMN specview_cache.job_id IS
    'The job that rendered it.';
COMMENT ON COLUMN specview_cache.created_at IS
    'When it was rendered.';

CREATE INDEX specview_cache_age ON specview_cache (created_at);
