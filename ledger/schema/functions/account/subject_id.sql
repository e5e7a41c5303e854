-- The id of a subject that is not a UUID: a UUIDv8 of SHA-256, so that it can be computed in any language. Rust
-- computes the same in ledger/src/holder.rs.
-- Cost: no table.
-- Callers: weir_holder; ledger/src/control/sql/import_prepare.sql.
CREATE OR REPLACE FUNCTION subject_id(namespace uuid, subject text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    h CONSTANT bytea := substr(sha256(uuid_send(namespace) || convert_to('subject:' || subject, 'UTF8')), 1, 16);
BEGIN
    RETURN encode(set_byte(set_byte(h, 6, get_byte(h, 6) & 15 | 128), 8, get_byte(h, 8) & 63 | 128), 'hex')::uuid;
END
$$;
