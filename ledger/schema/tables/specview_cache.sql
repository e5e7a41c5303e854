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
    'Rendered tests of the sample service, so that the same test in the same language is charged once.';

CREATE INDEX specview_cache_age ON specview_cache (created_at);
