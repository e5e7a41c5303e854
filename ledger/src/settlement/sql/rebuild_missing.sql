-- Inserts the missing rows of holders, as their reservations require.
-- Parameters: $1 holders.
INSERT INTO holders (holder, event_type, user_id)
SELECT DISTINCT ON (holder, event_type) holder, event_type, user_id FROM quota_reservations
WHERE holder = ANY ($1::uuid[])
ON CONFLICT (holder, event_type) DO NOTHING
