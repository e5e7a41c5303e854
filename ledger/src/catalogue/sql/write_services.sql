-- Returns the changed services. Parameters:
--
-- - $1 to $4: names, meters, kinds, max_attempts.
-- - $5 to $7: unique_by as JSON, amounts, members with the amount.
-- - $8 to $11: base, factor, power and longest pause of retries.
-- - $12: seconds that an attempt may take.
-- - $13: seconds after which a job that still waits is cancelled.
WITH wanted AS (
    SELECT w.*, ARRAY(SELECT jsonb_array_elements_text(w.unique_json)) AS unique_by
    FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::jsonb[], $6::bigint[], $7::text[], $8::float8[],
                $9::float8[], $10::float8[], $11::float8[], $12::float8[], $13::float8[])
        AS w (name, event_type, kind, max_attempts, unique_json, amount, amount_member, retry_base, retry_factor,
              retry_power, retry_max, timeout, expires_in)
)
INSERT INTO weir_services AS s
    (name, event_type, kind, max_attempts, unique_by, amount, amount_member, retry_base, retry_factor, retry_power,
     retry_max, timeout, expires_in)
SELECT name, event_type, kind, max_attempts, unique_by, amount, amount_member, retry_base, retry_factor, retry_power,
       retry_max, timeout, expires_in
FROM wanted
ON CONFLICT (name) DO UPDATE
    SET event_type = excluded.event_type, kind = excluded.kind, max_attempts = excluded.max_attempts,
        unique_by = excluded.unique_by, amount = excluded.amount, amount_member = excluded.amount_member,
        retry_base = excluded.retry_base, retry_factor = excluded.retry_factor,
        retry_power = excluded.retry_power, retry_max = excluded.retry_max, timeout = excluded.timeout,
        expires_in = excluded.expires_in
    WHERE s IS DISTINCT FROM excluded
RETURNING name, xmax = 0 AS is_new
