-- A grant. $1 user, $2 meter, $3 amount, $4 until when, $5 reason. The holder's row tells reservations to look for it.
WITH holder AS (
    INSERT INTO holders AS h (holder, event_type, user_id, has_grants) VALUES ($1, $2, $1, true)
    ON CONFLICT (holder, event_type) DO UPDATE SET has_grants = true
)
INSERT INTO grants (user_id, event_type, amount, expires_at, reason)
VALUES ($1, $2, $3, $4, $5)
RETURNING *
