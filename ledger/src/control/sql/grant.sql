-- A grant. $1 user, $2 meter, $3 amount, $4 until when, $5 reason. The holder's row tells reservations to look for it.
-- No row when a sum over all grants of the user could not hold the amount.
WITH holder AS (
    INSERT INTO holders AS h (holder, event_type, user_id, has_grants) VALUES ($1, $2, $1, true)
    ON CONFLICT (holder, event_type) DO UPDATE SET has_grants = true
)
INSERT INTO grants (user_id, event_type, amount, expires_at, reason)
SELECT $1, $2, $3::bigint, $4::timestamptz, $5::text
WHERE (SELECT coalesce(sum(k.amount), 0) + $3 FROM grants k WHERE k.user_id = $1 AND k.event_type = $2)
      <= 9223372036854775807
RETURNING *
