-- Usage events of a transaction that this server has not had yet came with a dump from another server. Events from now on
-- come after them in the feed. This transaction may be older than what others have committed since; what its statement
-- sees of this server is older than its snapshot's end.
SELECT set_config('weir.counters', 'kept', true);
UPDATE usage_events SET xid = NULL WHERE xid >= pg_snapshot_xmax(pg_current_snapshot());
