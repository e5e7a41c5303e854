-- How deep objects and arrays are nested in a JSON value, counted up to 128. A value with at most 127 brackets counts as
-- deep as it could be.
-- Cost: one pass over the text; with more than 127 brackets in it, one row for each member.
-- Callers: submission_of, submit_options.
CREATE OR REPLACE FUNCTION json_depth(of_value jsonb) RETURNS int
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    brackets CONSTANT int := length(of_value::text) - length(translate(of_value::text, '[{', ''));
BEGIN
    IF brackets <= 127 THEN
        RETURN brackets;
    END IF;
    RETURN (
        WITH RECURSIVE levels AS (
            SELECT of_value AS value, 1 AS depth
            UNION ALL
            SELECT m.value, l.depth + 1
            FROM levels l
            CROSS JOIN LATERAL (
                SELECT e.value FROM jsonb_each(CASE jsonb_typeof(l.value) WHEN 'object' THEN l.value ELSE '{}' END) e
                UNION ALL
                SELECT e.value FROM jsonb_array_elements(CASE jsonb_typeof(l.value) WHEN 'array' THEN l.value ELSE '[]' END) e
            ) m
            WHERE jsonb_typeof(m.value) IN ('object', 'array') AND l.depth < 128
        )
        SELECT max(l.depth) FROM levels l);
END
$$;
