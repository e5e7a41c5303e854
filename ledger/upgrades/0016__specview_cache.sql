-- The sample service has left Weir. Processes of the previous release still use its table, so the next release drops it.
TRUNCATE specview_cache;
COMMENT ON TABLE specview_cache IS
    'Unused. Processes of release 0.1.0 need it during an upgrade.';
