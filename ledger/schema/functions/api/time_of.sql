-- A time in JSON. Without an offset, it would depend on the session's TimeZone.
-- Parameters: name: that of the JSON member, for the error.
-- Errors: 22023 for a text without an offset, and for a time that does not exist.
-- Cost: no table.
-- Callers: submit_options, weir_settle_many.
CREATE OR REPLACE FUNCTION time_of(value text, name text) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET DateStyle = 'ISO, MDY'
AS $$
BEGIN
    IF value !~* '^\d{4,5}-\d\d-\d\d[t ]\d\d:\d\d(:\d\d([.]\d+)?)? ?(z|[+-]\d\d(:?\d\d)?)$' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('%s must be a time with an offset, such as 2027-01-31T08:00:00Z', name);
    END IF;
    RETURN value::timestamptz;
EXCEPTION WHEN invalid_parameter_value THEN
    RAISE;
WHEN data_exception THEN
    RAISE invalid_parameter_value USING
        MESSAGE = format('%s must be a time that exists, such as 2027-01-31T08:00:00Z', name);
END
$$;
