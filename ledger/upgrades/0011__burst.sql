-- Idle workers are lent to accounts whose jobs wait.
ALTER TABLE plan_limits ADD COLUMN burst int;
ALTER TABLE limit_overrides ADD COLUMN burst int;
ALTER TABLE limit_overrides ADD CONSTRAINT limit_overrides_burst_check CHECK (burst > 0);
COMMENT ON COLUMN plan_limits.slots IS
    'The number of jobs per holder that may run at once, however busy the workers are.';
COMMENT ON COLUMN plan_limits.burst IS
    'The number of jobs per holder that may run at once on workers that would be idle; null: as many as slots.';
COMMENT ON COLUMN limit_overrides.burst IS
    'Jobs at once on idle workers, instead of the plan''s.';
COMMENT ON COLUMN holders.granted_slots IS
    'The limit when a slot was last taken: that of slots, or for a lent worker that of the burst. 2147483647 is unlimited.';

ALTER TABLE processes ADD COLUMN lends jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN processes.lends IS
    'The number of workers by queue that may be lent.';

CREATE TABLE waiting_accounts (
    event_type usage_event_type NOT NULL,
    holder uuid NOT NULL,
    PRIMARY KEY (event_type, holder),
    FOREIGN KEY (holder, event_type) REFERENCES holders(holder, event_type) ON DELETE CASCADE
);

COMMENT ON TABLE waiting_accounts IS
    'The accounts to which idle workers may be lent: their jobs wait, and their burst exceeds their slots. A row is written under the account''s lock. It may stay for some seconds after the last waiting job has started, so that it is not written for each job.';
COMMENT ON COLUMN waiting_accounts.event_type IS
    'The meter.';
COMMENT ON COLUMN waiting_accounts.holder IS
    'The account.';

-- Their results or parameters changed.
DROP FUNCTION IF EXISTS plan_of(uuid, text, timestamptz);
DROP FUNCTION IF EXISTS account_of(uuid, text, boolean, timestamptz, timestamptz, smallint, timestamptz);
DROP FUNCTION IF EXISTS submit_many(submission[], text, boolean);
DROP FUNCTION IF EXISTS claim_jobs(text, text[], boolean, text[], int[], timestamptz[]);
DROP FUNCTION IF EXISTS weir_claim(text, text, int);
DROP PROCEDURE IF EXISTS await_unclaimed(int, text[], bigint[]);
