-- Whether a session finds the tables, and those that it was told: where a schema was named, what is elsewhere is another
-- Weir's, or another River's.
WITH told AS (
    SELECT coalesce(quote_ident(nullif(current_setting('weir.schema', true), '')) || '.', '') AS weir,
           coalesce(quote_ident(nullif(current_setting('weir.river_schema', true), '')) || '.', '') AS river
)
SELECT to_regclass(weir || 'weir_schema') IS NOT NULL AS has_record,
       coalesce(to_regclass(river || 'river_job') = to_regclass('river_job'), false) AS has_jobs,
       to_regclass('river_migration') IS NOT NULL AS has_river_ledger
FROM told
