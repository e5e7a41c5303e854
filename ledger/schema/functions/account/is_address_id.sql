-- Whether an id is a client address's: a UUID of the variant that RFC 9562 reserves, which no UUID issuer uses. An
-- address and a user therefore never share an id. Rust decides the same in policy/src/subject.rs. The
-- checks of holders.sql and users.sql contain the rule, because functions are created after tables.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table.
-- Callers: weir_holder.
CREATE OR REPLACE FUNCTION is_address_id(id uuid) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT get_byte(uuid_send(id), 8) >= 224
$$;
