-- What counts for a user instead of the plan's. $1 user, $2 meter, $3 a month, $4 a day, $5 an hour, $6 a minute, $7 slots,
-- $8 until when. Its row is kept when it ends, since `changed_at` tells whose waiting jobs to look at.
INSERT INTO limit_overrides AS o (user_id, event_type, month, day, hour, minute, slots, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (user_id, event_type) DO UPDATE
    SET month = excluded.month, day = excluded.day, hour = excluded.hour, minute = excluded.minute,
        slots = excluded.slots, expires_at = excluded.expires_at, changed_at = clock_timestamp()
