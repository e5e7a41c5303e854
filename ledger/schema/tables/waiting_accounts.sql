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
