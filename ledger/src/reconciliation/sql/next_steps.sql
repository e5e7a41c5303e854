-- The seconds until the next job asks for a slot, and until the next job expires. Two look-ups in partial indexes.
SELECT (SELECT extract(epoch FROM min(due_at) - clock_timestamp()) FROM quota_reservations
        WHERE due_at IS NOT NULL)::float8 AS due,
       (SELECT extract(epoch FROM min(start_by) - clock_timestamp()) FROM quota_reservations
        WHERE start_by IS NOT NULL)::float8 AS expiry
