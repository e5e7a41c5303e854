-- A webhook's secret that is rotated twice within a day: which of the two before it the receiver has, nobody knows.
ALTER TABLE webhooks ADD COLUMN older_secret text;
COMMENT ON COLUMN webhooks.older_secret IS 'signs besides until previous_until, too, when the one after it was rotated within its day';
