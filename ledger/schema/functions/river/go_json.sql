-- JSON as Go's encoder writes it: River's clients derive unique keys from it. Keys in byte order, no spaces, the
-- shortest form of numbers. Rust: the crate riverqueue.
CREATE OR REPLACE FUNCTION go_json(value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET extra_float_digits = 1
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
DECLARE
    literal text;
BEGIN
    CASE jsonb_typeof(value)
        WHEN 'object' THEN
            RETURN '{' || coalesce((
                SELECT string_agg(go_json(to_jsonb(m.key)) || ':' || go_json(m.value), ',' ORDER BY m.key COLLATE "C")
                FROM jsonb_each(value) m), '') || '}';
        WHEN 'array' THEN
            RETURN '[' || coalesce((
                SELECT string_agg(go_json(e.value), ',' ORDER BY e.n)
                FROM jsonb_array_elements(value) WITH ORDINALITY e (value, n)), '') || ']';
        WHEN 'string' THEN
            literal := replace(replace(replace(value::text, '<', '\u003c'), '>', '\u003e'), '&', '\u0026');
            RETURN replace(replace(literal, U&'\2028', '\u2028'), U&'\2029', '\u2029');
        WHEN 'number' THEN
            IF scale(value::numeric) = 0
               AND value::numeric BETWEEN -9223372036854775808 AND 18446744073709551615 THEN
                RETURN value::text;
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
