-- A retry requests a slot this long before its due time, so that it can start on time.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: settle_many.
CREATE OR REPLACE FUNCTION retry_lead() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT interval '500 milliseconds'
$$;
