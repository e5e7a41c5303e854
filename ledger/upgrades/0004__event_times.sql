-- A charge has the time at which it was written, instead of the start of a transaction that may include the job's work.
ALTER TABLE usage_events ALTER COLUMN created_at SET DEFAULT clock_timestamp();
COMMENT ON COLUMN usage_events.created_at IS
    'When it was charged. Its transaction commits later.';
