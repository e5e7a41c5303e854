-- Creates a grant. The holder's row then makes reservations look for it. Returns no row when the sum of all the user's
-- grants would be out of range.
-- Parameters: $1 user, $2 meter, $3 amount, $4 expiry, $5 reason.
WITH holder AS (
    INSERT INTO holders AS h (holder, event_type, user_id, has_grants) VALUES ($1, $2, $1, true)
    ON CONFLICT (holder, event_type) DO UPDATE SET has_grants = true
)
INSERT INTO grants (user_id, event_type, amount, expires_at, reason)
SELECT $1, $2, $3::bigint, $4::timestamptz, $5::text
WHERE (SELECT coalesce(sum(k.amount), 0) + $3 FROM grants k WHERE k.user_id = $1 AND k.event_type = $2)
      <= 9223372036854775807
RETURNING *
