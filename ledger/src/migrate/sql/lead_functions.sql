-- Functions that run in sessions of somebody else, triggers among them, find the tables wherever those sessions look,
-- and find them before a temporary table of the same name. Weir's own sessions pay nothing: their transactions keep the
-- triggers out of the way. After every migration, since replacing a function forgets its settings.
DO $$
DECLARE
    path text := current_setting('search_path') || ', pg_temp';
    f regprocedure;
    setting text;
BEGIN
    FOR f IN
        SELECT p.oid::regprocedure
        FROM pg_proc p
        WHERE p.prokind IN ('f', 'p') AND p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
          AND p.proname = ANY ('{own}')
          AND (p.proname LIKE 'weir\_%' OR p.oid IN (
              SELECT t.tgfoid FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
              WHERE c.relnamespace = p.pronamespace AND NOT t.tgisinternal))
          AND NOT EXISTS (
              SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
          AND coalesce('search_path=' || path <> ALL (p.proconfig), true)
    LOOP
        PERFORM set_config('search_path', path, true);
        EXECUTE format('ALTER ROUTINE %s SET search_path FROM CURRENT', f);
    END LOOP;
    -- One plan a session does for all that comes, since every look is one by key; by default the first five calls of every
    -- session would each plan some twenty statements. As Weir's own sessions have it, no plan is made for what the tables
    -- happened to be when it was.
    FOR f, setting IN
        SELECT p.oid::regprocedure, s.name || '=' || s.value
        FROM pg_proc p
        CROSS JOIN (VALUES ('plan_cache_mode', 'force_generic_plan'), ('enable_seqscan', 'off'), ('enable_hashjoin', 'off'),
                           ('enable_mergejoin', 'off'), ('jit', 'off')) AS s (name, value)
        WHERE p.prokind = 'f' AND p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
          AND p.proname IN ('weir_submit', 'weir_complete', 'weir_fail', 'weir_progress', 'weir_extend')
          AND coalesce(s.name || '=' || s.value <> ALL (p.proconfig), true)
    LOOP
        EXECUTE format('ALTER ROUTINE %s SET %s', f, setting);
    END LOOP;
END
$$;

-- River's channels begin with the name of its schema. Each notification would look it up.
DO $$
BEGIN
    IF to_regclass('river_job') IS NOT NULL AND EXISTS (
        SELECT FROM pg_proc p WHERE p.proname = 'river_channel'
          AND p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
    ) THEN
        EXECUTE format(
            'CREATE OR REPLACE FUNCTION %I.river_channel(topic text) RETURNS text LANGUAGE sql IMMUTABLE AS %L',
            current_schema(),
            format('SELECT %L || topic', (SELECT n.nspname || '.' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                                          WHERE c.oid = to_regclass('river_job'))));
    END IF;
END
$$;

-- Usage events of a transaction that this server has not had yet came along with a dump from another one. What is written
-- from now on comes after them. This transaction may be older than what others have committed since; what its statement
-- sees of this server is older than its snapshot's end.
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_attribute
               WHERE attrelid = to_regclass('usage_events') AND attname = 'xid' AND NOT attisdropped) THEN
        PERFORM set_config('weir.books', 'kept', true);
        UPDATE usage_events SET xid = NULL WHERE xid >= pg_snapshot_xmax(pg_current_snapshot());
    END IF;
END
$$;
