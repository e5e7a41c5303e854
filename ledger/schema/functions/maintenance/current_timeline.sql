-- The server's timeline; null on a replica, and on servers that do not report it.
-- Cost: none: the server has it in memory.
-- Callers: note_log_timeline; ledger/src/control/sql/usage_place.sql, ledger/src/control/usage_feed.rs,
-- ledger/src/processes.rs, ledger/src/sql/beat.sql, ledger/src/maintenance/note_timeline.sql.
CREATE OR REPLACE FUNCTION current_timeline() RETURNS int
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NULL;
    END IF;
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
EXCEPTION
    WHEN feature_not_supported OR insufficient_privilege OR undefined_function OR raise_exception THEN
        RETURN NULL;
END
$$;
