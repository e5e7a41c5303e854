-- A user's grants that are not used up or that have reservations, in the order in which grants_left() draws on them.
-- Parameters: $1 user. A range of the grants' index.
SELECT *
FROM grants
WHERE user_id = $1 AND used < amount
  AND (reserved > 0 OR expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY expires_at NULLS LAST, created_at, id
