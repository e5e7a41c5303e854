-- Whether each function that lead_functions.sql leads has a search_path. $1 the schema of Weir's tables; null is where the
-- session makes tables. $2 the names of those that migrations make.
SELECT NOT EXISTS (
    SELECT 1
    FROM pg_proc p
    WHERE p.prokind IN ('f', 'p')
      AND p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = coalesce($1::text, current_schema()))
      AND p.proname = ANY ($2::text[])
      AND (p.proname LIKE 'weir\_%' OR p.oid IN (
          SELECT t.tgfoid FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
          WHERE c.relnamespace = p.pronamespace AND NOT t.tgisinternal))
      AND NOT EXISTS (
          SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
      AND NOT EXISTS (SELECT 1 FROM unnest(p.proconfig) AS s (setting) WHERE s.setting LIKE 'search\_path=%')
) AS are_led
