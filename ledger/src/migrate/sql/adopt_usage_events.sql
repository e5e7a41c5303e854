-- Clears the transaction of usage events that came with a dump from another server: this server has not reached that
-- transaction yet. New events then come after them in the feed. The statement compares with its snapshot's end and not
-- with this transaction's id. Others may have committed since the transaction started, but all rows of this server that
-- the statement sees are older than the snapshot's end.
UPDATE usage_events SET xid = NULL WHERE xid >= pg_snapshot_xmax(pg_current_snapshot());
