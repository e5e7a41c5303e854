-- Whether a session finds the tables in the named schemas. Tables elsewhere belong to another Weir or another River.
WITH named AS (
    SELECT coalesce(quote_ident(nullif(current_setting('weir.schema', true), '')) || '.', '') AS weir,
           coalesce(quote_ident(nullif(current_setting('weir.river_schema', true), '')) || '.', '') AS river
)
SELECT to_regclass(weir || 'weir_schema') IS NOT NULL AS has_record,
       coalesce(to_regclass(river || 'river_job') = to_regclass('river_job'), false) AS has_jobs,
       to_regclass('river_migration') IS NOT NULL AS has_river_ledger
FROM named
