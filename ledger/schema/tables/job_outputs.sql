CREATE TABLE job_outputs (
    job_id bigint NOT NULL,
    output jsonb NOT NULL,
    PRIMARY KEY (job_id)
);

COMMENT ON TABLE job_outputs IS
    'Outputs of more than 4 KiB. Smaller ones are in river_job.metadata, member "output".';
COMMENT ON COLUMN job_outputs.job_id IS
    'The job that made the output.';
COMMENT ON COLUMN job_outputs.output IS
    'The output.';
