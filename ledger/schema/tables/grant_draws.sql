CREATE TABLE grant_draws (
    job_id bigint NOT NULL,
    position smallint NOT NULL,
    grant_id uuid NOT NULL,
    amount bigint NOT NULL,
    charged bigint,
    PRIMARY KEY (job_id, "position"),
    CONSTRAINT grant_draws_amount_check CHECK (amount > 0),
    CONSTRAINT grant_draws_charged_check CHECK (charged > 0),
    FOREIGN KEY (grant_id) REFERENCES grants(id)
);

COMMENT ON TABLE grant_draws IS
    'The amounts that jobs drew on grants.';
COMMENT ON COLUMN grant_draws.job_id IS
    'The job that drew on the grant.';
COMMENT ON COLUMN grant_draws.position IS
    'The order in which the job drew on grants and is charged to them.';
COMMENT ON COLUMN grant_draws.grant_id IS
    'The grant.';
COMMENT ON COLUMN grant_draws.amount IS
    'The amount reserved of the grant.';
COMMENT ON COLUMN grant_draws.charged IS
    'The amount charged to the grant; null while the reservation exists.';

CREATE INDEX grant_draws_of_grant ON grant_draws (grant_id);
