-- Returns the id of a subject in `users`, `holders` and all other tables, whether or not the subject has been seen. A
-- UUID, in any of its spellings, is its own id; another text has an id derived from it.
--
-- | parameter | |
-- |---|---|
-- | `subject` | 1 to 255 bytes without control characters, also those of bidirectional text, and not the id of a client address |
--
-- Errors: 22023 for an invalid subject.
--
-- Cost: one row of weir_settings.
-- Callers: submission_of, weir_admit, weir_charge, weir_quota; other languages, as either role. Rust checks the subject in policy/src/subject.rs
-- and computes the id in ledger/src/holder.rs.
CREATE OR REPLACE FUNCTION weir_holder(subject text) RETURNS uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
DECLARE
    id CONSTANT uuid := uuid_of_subject(subject);
BEGIN
    IF subject IS NULL OR octet_length(convert_to(subject, 'UTF8')) NOT BETWEEN 1 AND 255
       OR subject ~ '[\u0001-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a subject must have 1 to 255 bytes and no control characters';
    END IF;
    IF is_address_id(id) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a subject must not be the id of a client address';
    END IF;
    RETURN coalesce(id,
                    subject_id((SELECT s.address_namespace FROM weir_settings s), subject));
END
$$;
