-- The unique key of the holder's job by these members of its arguments; null when a member is missing or no members are
-- given.
-- Errors: 22023 for a member that is nested more than 100 deep; 22003 for a number that is larger than any double.
-- Rust: ledger/src/unique_key.rs.
-- Cost: no table.
-- Callers: submission_of.
CREATE OR REPLACE FUNCTION unique_key_of(holder uuid, kind text, args jsonb, members text[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path FROM CURRENT
AS $$
BEGIN
    IF cardinality(members) > 0 AND args ?& members THEN
        RETURN sha256(convert_to('&kind=' || kind || '&args='
            || go_json((SELECT jsonb_object_agg(m, args -> m) FROM unnest(members) AS m), 0) || '&holder=' || holder, 'UTF8'));
    END IF;
    RETURN NULL;
END
$$;
