-- Sets a user's override. An ended override keeps its row, because maintenance finds the user's waiting jobs by
-- `changed_at`.
-- Parameters: $1 user, $2 meter, $3 a month, $4 a day, $5 an hour, $6 a minute, $7 slots, $8 expiry, $9 burst.
INSERT INTO limit_overrides AS o (user_id, event_type, month, day, hour, minute, slots, expires_at, burst)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (user_id, event_type) DO UPDATE
    SET month = excluded.month, day = excluded.day, hour = excluded.hour, minute = excluded.minute,
        slots = excluded.slots, burst = excluded.burst, expires_at = excluded.expires_at, changed_at = clock_timestamp()
