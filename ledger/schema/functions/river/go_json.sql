-- JSON in the format of Go's encoder, for unique keys: keys in byte order, no spaces, the shortest form of numbers.
-- depth: the nesting level. Rust: the crate riverqueue.
-- Errors: 22023 for more than 101 levels (unique_key_of's object and its members); 22003 for a number outside the range
-- of a double.
-- Cost: no table.
-- Callers: unique_key_of.
CREATE OR REPLACE FUNCTION go_json(value jsonb, depth int) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET extra_float_digits = 1
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
DECLARE
    literal text;
BEGIN
    IF depth > 100 AND jsonb_typeof(value) IN ('object', 'array') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a member of unique_by must be nested at most 100 deep';
    END IF;
    CASE jsonb_typeof(value)
        WHEN 'object' THEN
            RETURN '{' || coalesce((
                SELECT string_agg(go_json(to_jsonb(m.key), depth) || ':' || go_json(m.value, depth + 1), ',' ORDER BY m.key COLLATE "C")
                FROM jsonb_each(value) m), '') || '}';
        WHEN 'array' THEN
            RETURN '[' || coalesce((
                SELECT string_agg(go_json(e.value, depth + 1), ',' ORDER BY e.n)
                FROM jsonb_array_elements(value) WITH ORDINALITY e (value, n)), '') || ']';
        WHEN 'string' THEN
            literal := replace(replace(replace(value::text, '<', '\u003c'), '>', '\u003e'), '&', '\u0026');
            RETURN replace(replace(literal, U&'\2028', '\u2028'), U&'\2029', '\u2029');
        WHEN 'number' THEN
            IF scale(value::numeric) = 0
               AND value::numeric BETWEEN -9223372036854775808 AND 18446744073709551615 THEN
                RETURN value::text;
            END IF;
            -- Half of the smallest double. A smaller number is 0 as a double, and PostgreSQL's conversion refuses it.
            IF abs(value::numeric) <= 2.47032822920623272088e-324 THEN
                RETURN '0';
            END IF;
            literal := (value::numeric::float8)::text;
            IF literal::numeric = 0 OR abs(literal::numeric) >= 1e-6 AND abs(literal::numeric) < 1e21 THEN
                RETURN trim_scale(literal::numeric)::text;
            END IF;
            RETURN regexp_replace(literal, 'e([+-])0(\d)$', 'e\1\2');
        ELSE
            RETURN value::text;
    END CASE;
END
$$;
