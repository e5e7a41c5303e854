-- A subject as a UUID, in any spelling; null for any other text. Rust: policy/src/subject.rs (uuid).
-- Cost: no table.
-- Callers: submission_of, weir_admit, weir_charge, weir_holder; ledger/src/control/sql/import_prepare.sql.
CREATE OR REPLACE FUNCTION uuid_of_subject(subject text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
DECLARE
    hyphenated CONSTANT text := '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}';
BEGIN
    IF subject ~* format('^([0-9a-f]{32}|%1$s|\{%1$s\}|urn:uuid:%1$s)$', hyphenated) THEN
        RETURN regexp_replace(subject, '^urn:uuid:', '', 'i')::uuid;
    END IF;
    RETURN NULL;
END
$$;
