-- Inserts the missing rows of one holder, as its reservations require.
-- Parameters: $1 holder.
INSERT INTO holders (holder, event_type, user_id)
SELECT DISTINCT ON (holder, event_type) holder, event_type, user_id FROM quota_reservations WHERE holder = $1
ON CONFLICT (holder, event_type) DO NOTHING
