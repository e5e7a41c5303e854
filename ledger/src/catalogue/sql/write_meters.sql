-- Parameters: $1 names, $2 units.
INSERT INTO meters AS m (name, unit)
SELECT * FROM unnest($1::text[], $2::text[])
ON CONFLICT (name) DO UPDATE SET unit = excluded.unit WHERE m.unit <> excluded.unit
