-- How long before a retry is due its job asks for a slot, so that it can start on time.
-- Callers: fail_attempt; ledger/src/settlement/sql/release.sql.
CREATE OR REPLACE FUNCTION retry_lead() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT interval '500 milliseconds'
$$;
