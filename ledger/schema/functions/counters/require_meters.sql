-- Refuses (23503) names that are not a meter, because nothing would count them. Called only for writes by hand, so that
-- reservations do not pay for it.
-- Cost: one look-up by key a name.
-- Callers: the triggers that count.
CREATE OR REPLACE FUNCTION require_meters(names text[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    unknown text := (SELECT n FROM unnest(names) AS n WHERE NOT EXISTS (SELECT 1 FROM meters m WHERE m.name = n) LIMIT 1);
BEGIN
    IF unknown IS NOT NULL THEN
        RAISE foreign_key_violation USING
            MESSAGE = format('unknown meter %s', unknown),
            HINT = 'the table meters lists the meters; run `weir migrate` to add those of weir.toml';
    END IF;
END
$$;
